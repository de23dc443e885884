// Ops that make tables and tell whether they are there.
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/table/table_config.h"
#include "ops/system/handles.h"
#include "ops/system/status_guard.h"
#include "ops/table/table_set.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/resource_op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace monolith::ops {
namespace {

namespace tf = tensorflow;
namespace shapes = tensorflow::shape_inference;

REGISTER_OP("MonolithDummySyncClient")
    .Output("handle: resource")
    .Attr("config: string = ''")
    .Attr("container: string = ''")
    .Attr("shared_name: string = ''")
    .SetIsStateful()
    .SetShapeFn(shapes::ScalarShape)
    .Doc("Makes, or finds by its name, a sync client that tells nobody which ids have changed.");

REGISTER_OP("MonolithHashTable")
    .Input("filter_handle: resource")
    .Input("sync_client_handle: resource")
    .Output("handle: resource")
    .Attr("config: string")
    .Attr("container: string = ''")
    .Attr("shared_name: string = ''")
    .Attr("counted_as: string = ''")
    .SetIsStateful()
    .SetShapeFn(shapes::ScalarShape)
    .Doc(R"doc(
Makes the table of `config`, a serialized EmbeddingHashTableConfig, or finds it by its name; refuses
to find one with another config. If the config has an occurrence_threshold, the filter counts the
table's ids apart from those of others, under the name `counted_as`, or its own name if that is
empty; the parts of a table on several servers have one.
)doc");

REGISTER_OP("CreateMonolithMultiHashTable")
    .Input("config: string")
    .Input("filter_handle: resource")
    .Input("sync_client_handle: resource")
    .Output("multi_hash_table_handle: resource")
    .Attr("container: string = ''")
    .Attr("shared_name: string = ''")
    .SetIsStateful()
    .SetShapeFn(shapes::ScalarShape)
    .Doc(R"doc(
Makes the set of tables of `config`, a serialized MultiEmbeddingHashTableConfig, or finds it by its
name; refuses to find one with another config. If the config of a table has an occurrence_threshold,
the filter counts its ids apart from those of others, under the table's name.
)doc");

REGISTER_OP("ReadMonolithMultiHashTable")
    .Output("multi_hash_table_handle: resource")
    .Attr("container: string = ''")
    .Attr("shared_name: string = ''")
    .SetIsStateful()
    .SetShapeFn(shapes::ScalarShape)
    .Doc("Returns the handle of the set of tables of this name, whether it has been made or not.");

REGISTER_OP("IsHashTableInitialized")
    .Input("handle: resource")
    .Output("is_initialized: bool")
    .SetIsStateful()
    .SetShapeFn(shapes::ScalarShape)
    .Doc("Returns whether the tables of the handle have been made.");

class DummySyncClientOp : public tf::ResourceOpKernel<SyncClient> {
 public:
  using tf::ResourceOpKernel<SyncClient>::ResourceOpKernel;

 private:
  absl::Status CreateResource(SyncClient** client) override {
    *client = new DummySyncClient();
    return absl::OkStatus();
  }
};

// Makes the set once, and afterwards only checks that it is asked for with the same config.
class CreateTableSetOp : public tf::OpKernel {
 public:
  explicit CreateTableSetOp(tf::OpKernelConstruction* ctx) : tf::OpKernel(ctx) {}

  void Compute(tf::OpKernelContext* ctx) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!cinfo_ready_) {
      OP_REQUIRES_OK(ctx, cinfo_.Init(ctx->resource_manager(), def()));
      cinfo_ready_ = true;
    }
    std::string config;
    OP_REQUIRES_OK(ctx, SerializedConfig(ctx, &config));
    // Looked up before the set is made: the resource manager is locked while it makes something.
    const int filter_input = ctx->num_inputs() - 2;
    tf::core::RefCountPtr<FilterResource> filter;
    OP_REQUIRES_OK(ctx, FindResource(ctx, filter_input, &filter));
    tf::core::RefCountPtr<SyncClient> sync_client;
    OP_REQUIRES_OK(ctx, FindResource(ctx, filter_input + 1, &sync_client));
    TableSet* found = nullptr;
    OP_REQUIRES_OK(ctx, ctx->resource_manager()->LookupOrCreate<TableSet>(
                            cinfo_.container(), cinfo_.name(), &found, [&](TableSet** made) {
                              return Make(config, std::move(filter), std::move(sync_client), made);
                            }));
    const tf::core::RefCountPtr<TableSet> set(found);
    OP_REQUIRES(
        ctx,
        set->serialized_config() == config && set->counted_as() == CountedAs(set->table_names()),
        absl::InvalidArgumentError(absl::StrCat("Table ", cinfo_.name(),
                                                " exists with another config; use another name.")));
    OP_REQUIRES_OK(ctx, set->sync_client()->Follow(set.get(), IsMulti()));
    tf::Tensor* handle = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, tf::TensorShape({}), &handle));
    handle->scalar<tf::ResourceHandle>()() =
        tf::MakeResourceHandle<TableSet>(ctx, cinfo_.container(), cinfo_.name());
  }

 protected:
  // Whether the tables are called as a whole, by the multi-table ops.
  [[nodiscard]] virtual bool IsMulti() const = 0;
  [[nodiscard]] virtual absl::Status SerializedConfig(tf::OpKernelContext* ctx,
                                                      std::string* config) = 0;
  // Names and configs of the tables. May throw std::invalid_argument.
  virtual void Parse(const std::string& config, std::vector<std::string>* names,
                     std::vector<core::EmbeddingHashTableConfig>* configs) const = 0;
  // The names under which the filter counts the ids of the tables, given the tables' own.
  [[nodiscard]] virtual std::vector<std::string> CountedAs(std::vector<std::string> names) const {
    return names;
  }
  [[nodiscard]] const std::string& resource_name() const { return cinfo_.name(); }

 private:
  [[nodiscard]] absl::Status Make(const std::string& config,
                                  tf::core::RefCountPtr<FilterResource> filter,
                                  tf::core::RefCountPtr<SyncClient> sync_client, TableSet** made) {
    const absl::Status status = Guard([&] {
      std::vector<std::string> names;
      std::vector<core::EmbeddingHashTableConfig> configs;
      Parse(config, &names, &configs);
      *made = new TableSet(cinfo_.name(), config, names, CountedAs(names), configs,
                           std::move(filter), std::move(sync_client));
    });
    if (status.ok()) return status;
    return absl::Status(status.code(),
                        absl::StrCat("Table ", cinfo_.name(), ": ", status.message()));
  }

  std::mutex mutex_;
  tf::ContainerInfo cinfo_;
  bool cinfo_ready_ = false;
};

class CreateTableOp final : public CreateTableSetOp {
 public:
  explicit CreateTableOp(tf::OpKernelConstruction* ctx) : CreateTableSetOp(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("config", &config_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("counted_as", &counted_as_));
  }

 protected:
  [[nodiscard]] bool IsMulti() const override { return false; }
  absl::Status SerializedConfig(tf::OpKernelContext*, std::string* config) override {
    *config = config_;
    return absl::OkStatus();
  }
  void Parse(const std::string& config, std::vector<std::string>* names,
             std::vector<core::EmbeddingHashTableConfig>* configs) const override {
    names->push_back(resource_name());
    configs->push_back(core::ParseEmbeddingHashTableConfig(config));
  }
  [[nodiscard]] std::vector<std::string> CountedAs(std::vector<std::string> names) const override {
    return counted_as_.empty() ? names : std::vector<std::string>{counted_as_};
  }

 private:
  std::string config_;
  std::string counted_as_;
};

class CreateMultiTableOp final : public CreateTableSetOp {
 public:
  using CreateTableSetOp::CreateTableSetOp;

 protected:
  [[nodiscard]] bool IsMulti() const override { return true; }
  absl::Status SerializedConfig(tf::OpKernelContext* ctx, std::string* config) override {
    const tf::Tensor& input = ctx->input(0);
    if (!tf::TensorShapeUtils::IsScalar(input.shape())) {
      return absl::InvalidArgumentError(absl::StrCat("`config` must be a scalar string, got shape ",
                                                     input.shape().DebugString()));
    }
    *config = std::string(input.scalar<tf::tstring>()());
    return absl::OkStatus();
  }
  void Parse(const std::string& config, std::vector<std::string>* names,
             std::vector<core::EmbeddingHashTableConfig>* configs) const override {
    core::MultiEmbeddingHashTableConfig parsed = core::ParseMultiEmbeddingHashTableConfig(config);
    *names = std::move(parsed.names);
    *configs = std::move(parsed.configs);
  }
};

class ReadMultiTableOp final : public tf::OpKernel {
 public:
  explicit ReadMultiTableOp(tf::OpKernelConstruction* ctx) : tf::OpKernel(ctx) {}

  void Compute(tf::OpKernelContext* ctx) override {
    tf::ContainerInfo cinfo;
    OP_REQUIRES_OK(ctx, cinfo.Init(ctx->resource_manager(), def()));
    tf::Tensor* handle = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, tf::TensorShape({}), &handle));
    handle->scalar<tf::ResourceHandle>()() =
        tf::MakeResourceHandle<TableSet>(ctx, cinfo.container(), cinfo.name());
  }
};

REGISTER_KERNEL_BUILDER(Name("MonolithDummySyncClient").Device(tf::DEVICE_CPU), DummySyncClientOp);
REGISTER_KERNEL_BUILDER(Name("MonolithHashTable").Device(tf::DEVICE_CPU), CreateTableOp);
REGISTER_KERNEL_BUILDER(Name("CreateMonolithMultiHashTable").Device(tf::DEVICE_CPU),
                        CreateMultiTableOp);
REGISTER_KERNEL_BUILDER(Name("ReadMonolithMultiHashTable").Device(tf::DEVICE_CPU),
                        ReadMultiTableOp);
REGISTER_KERNEL_BUILDER(Name("IsHashTableInitialized").Device(tf::DEVICE_CPU),
                        tf::IsResourceInitialized<TableSet>);

}  // namespace
}  // namespace monolith::ops
