// Ops on one table: read, write, update.
#include <string>

#include "absl/strings/str_cat.h"
#include "ops/system/parallel.h"
#include "ops/system/status_guard.h"
#include "ops/system/tensor_checks.h"
#include "ops/table/lookup_counts.h"
#include "ops/table/table_calls.h"
#include "ops/table/table_set.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace monolith::ops {
namespace {

namespace tf = tensorflow;
namespace shapes = tensorflow::shape_inference;

// Ids of any shape count as a list.
absl::Status LookupShape(shapes::InferenceContext* c) {
  std::int64_t dim = 0;
  TF_RETURN_IF_ERROR(c->GetAttr("dim_size", &dim));
  if (dim > kMostPerDimension) {
    return absl::InvalidArgumentError(
        absl::StrCat("`dim_size` must be at most ", kMostPerDimension, ", got ", dim, "."));
  }
  c->set_output(0, c->Matrix(c->NumElements(c->input(1)), dim));
  return absl::OkStatus();
}

REGISTER_OP("MonolithHashTableLookup")
    .Input("table_handle: resource")
    .Input("ids: int64")
    .Output("embeddings: float")
    .Attr("dim_size: int >= 1")
    .Attr("use_multi_threads: bool = false")
    .SetIsStateful()
    .SetShapeFn(LookupShape)
    .Doc("Returns the rows of `ids`, [n, dim_size], zeros for absent ids, which get no row.");

REGISTER_OP("MonolithHashTableLookupEntry")
    .Input("table_handle: resource")
    .Input("ids: int64")
    .Output("entry_str: string")
    .SetIsStateful()
    .SetShapeFn([](shapes::InferenceContext* c) {
      c->set_output(0, c->Vector(c->NumElements(c->input(1))));
      return absl::OkStatus();
    })
    .Doc("Returns a serialized EntryDump without id for each of `ids`, empty for absent ids.");

REGISTER_OP("MonolithHashTableLookupGradient")
    .Input("id_indices: int64")
    .Input("id_values: int64")
    .Input("input_grads: float")
    .Output("ids: int64")
    .Output("output_grads: float")
    .SetShapeFn([](shapes::InferenceContext* c) {
      shapes::ShapeHandle grads;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(2), 2, &grads));
      c->set_output(0, c->Vector(c->NumElements(c->input(1))));
      c->set_output(1, c->Matrix(c->NumElements(c->input(1)), c->Dim(grads, 1)));
      return absl::OkStatus();
    })
    .Doc("Returns the ids, and for each the row of `input_grads` that `id_indices` says.");

REGISTER_OP("MonolithHashTableAssign")
    .Input("table_handle: resource")
    .Input("id_values: int64")
    .Input("id_updates: float")
    .Input("req_time: int64")
    .Output("table_handle_output: resource")
    .SetIsStateful()
    .SetShapeFn(shapes::ScalarShape)
    .Doc(R"doc(
Sets the rows of the ids to `id_updates`, [n, dim]; absent ids get a row if the filter admits them.
)doc");

REGISTER_OP("MonolithHashTableAssignAdd")
    .Input("table_handle: resource")
    .Input("id_values: int64")
    .Input("id_updates: float")
    .Input("req_time: int64")
    .Output("table_handle_output: resource")
    .SetIsStateful()
    .SetShapeFn(shapes::ScalarShape)
    .Doc(R"doc(
Adds `id_updates`, [n, dim], to the rows of the ids; absent ids get a row if the filter admits them.
)doc");

REGISTER_OP("MonolithHashTableOptimize")
    .Input("table_handle: resource")
    .Input("id_values: int64")
    .Input("id_updates: float")
    .Input("learning_rate_tensor: float")
    .Input("req_time: int64")
    .Input("global_step: int64")
    .Output("table_handle_output: resource")
    .Attr("use_multi_threads: bool = false")
    .Attr("queue_size: int = 0")
    .Attr("enable_dedup: bool = false")
    .SetIsStateful()
    .SetShapeFn(shapes::ScalarShape)
    .Doc(R"doc(
Takes an optimizer step with the gradients `id_updates`, [n, dim], for each occurrence of an id, or,
with `enable_dedup`, for each distinct id on the sum of its gradients. `queue_size` changes nothing:
updates do not wait.
)doc");

REGISTER_OP("MonolithHashTableSize")
    .Input("table_handle: resource")
    .Output("size: int64")
    .SetIsStateful()
    .SetShapeFn(shapes::ScalarShape)
    .Doc("Returns how many rows the table has.");

REGISTER_OP("MonolithHashTableEvict")
    .Input("table_handle: resource")
    .Input("max_update_time: int64")
    .Output("table_handle_output: resource")
    .Output("evicted: int64")
    .SetIsStateful()
    .SetShapeFn([](shapes::InferenceContext* c) {
      c->set_output(0, c->Scalar());
      c->set_output(1, c->Scalar());
      return absl::OkStatus();
    })
    .Doc(R"doc(
Removes the rows that have expired at `max_update_time` by the expire times of the table's config,
and returns how many.
)doc");

// Finds the one table of the set and hands it to the concrete op.
class OneTableOp : public tf::OpKernel {
 public:
  using tf::OpKernel::OpKernel;

  void Compute(tf::OpKernelContext* ctx) final {
    tf::core::RefCountPtr<TableSet> set;
    OP_REQUIRES_OK(ctx, GetTableSet(ctx, 0, &set));
    OP_REQUIRES(ctx, set->size() == 1,
                absl::InvalidArgumentError(
                    absl::StrCat(set->name(), " holds ", set->size(),
                                 " tables; use the multi-table ops on its handle.")));
    const auto tables = set->tables();
    Run(ctx, *set, *tables->front());
  }

 protected:
  virtual void Run(tf::OpKernelContext* ctx, const TableSet& set, core::EmbeddingTable& table) = 0;
};

class LookupOp final : public OneTableOp {
 public:
  explicit LookupOp(tf::OpKernelConstruction* ctx) : OneTableOp(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("dim_size", &dim_size_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("use_multi_threads", &use_multi_threads_));
  }

 private:
  void Run(tf::OpKernelContext* ctx, const TableSet& set, core::EmbeddingTable& table) override {
    OP_REQUIRES(ctx, dim_size_ == static_cast<std::int64_t>(table.dim()),
                absl::InvalidArgumentError(
                    absl::StrCat("dim_size should match hash table size. ", dim_size_, " vs ",
                                 table.dim(), ". Node name: ", name(), ", table ", set.name())));
    const tf::Tensor& ids = ctx->input(1);
    const auto n = static_cast<std::size_t>(ids.NumElements());
    tf::Tensor* rows = nullptr;
    OP_REQUIRES_OK(ctx,
                   ctx->allocate_output(0, tf::TensorShape({ids.NumElements(), dim_size_}), &rows));
    const core::Parallel parallel = OnAllThreads(ctx);
    OP_REQUIRES_OK(
        ctx, Guard([&] {
          CountLookup(n,
                      table.Lookup(ids.flat<std::int64_t>().data(), n, rows->flat<float>().data(),
                                   WorthThreads(ctx, n, use_multi_threads_) ? &parallel : nullptr));
        }));
  }

  std::int64_t dim_size_ = 0;
  bool use_multi_threads_ = false;
};

class LookupEntryOp final : public OneTableOp {
 public:
  using OneTableOp::OneTableOp;

 private:
  void Run(tf::OpKernelContext* ctx, const TableSet& set, core::EmbeddingTable& table) override {
    const tf::Tensor& ids = ctx->input(1);
    tf::Tensor* entries = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, tf::TensorShape({ids.NumElements()}), &entries));
    OP_REQUIRES_OK(ctx, NameTable(Guard([&] {
                                    std::vector<std::string> found(ids.NumElements());
                                    table.LookupEntry(ids.flat<std::int64_t>().data(), found.size(),
                                                      found.data());
                                    auto out = entries->flat<tf::tstring>();
                                    for (std::size_t i = 0; i < found.size(); ++i) {
                                      out(i) = std::move(found[i]);
                                    }
                                  }),
                                  set.name()));
  }
};

// Gathers the gradient rows that belong to each id; no table is involved.
class LookupGradientOp final : public tf::OpKernel {
 public:
  using tf::OpKernel::OpKernel;

  void Compute(tf::OpKernelContext* ctx) override {
    const tf::Tensor& indices = ctx->input(0);
    const tf::Tensor& ids = ctx->input(1);
    const tf::Tensor& grads = ctx->input(2);
    OP_REQUIRES(ctx, tf::TensorShapeUtils::IsMatrix(grads.shape()),
                absl::InvalidArgumentError(absl::StrCat(
                    "`input_grads` must be a matrix, got shape ", grads.shape().DebugString())));
    const std::int64_t n = ids.NumElements();
    // `id_indices` comes from a sparse tensor ([n, rank], the row first) or is the rows themselves.
    OP_REQUIRES(
        ctx,
        indices.dims() >= 1 && indices.dims() <= 2 && indices.dim_size(0) == n &&
            (n == 0 || indices.NumElements() > 0),
        absl::InvalidArgumentError(absl::StrCat(
            "`id_indices` must have ", n, " rows, one per id, of at least one number, got shape ",
            indices.shape().DebugString())));
    const std::int64_t stride = n == 0 ? 1 : indices.NumElements() / n;
    const auto rows = indices.flat<std::int64_t>();
    for (std::int64_t i = 0; i < n; ++i) {
      const std::int64_t row = rows(i * stride);
      OP_REQUIRES(ctx, row >= 0 && row < grads.dim_size(0),
                  absl::InvalidArgumentError(absl::StrCat(
                      "id_indices[", i, "] = ", row, " is not a row of `input_grads`, which has ",
                      grads.dim_size(0))));
    }
    tf::Tensor flat_ids;
    OP_REQUIRES(ctx, flat_ids.CopyFrom(ids, tf::TensorShape({n})),
                absl::InternalError("`id_values` could not be reshaped."));
    ctx->set_output(0, flat_ids);
    tf::Tensor* output = nullptr;
    const std::int64_t dim = grads.dim_size(1);
    tf::TensorShape shape;
    OP_REQUIRES_OK(ctx, MakeShape({n, dim}, &shape));
    OP_REQUIRES_OK(ctx, ctx->allocate_output(1, shape, &output));
    for (std::int64_t i = 0; i < n; ++i) {
      std::copy_n(grads.flat<float>().data() + rows(i * stride) * dim, dim,
                  output->flat<float>().data() + i * dim);
    }
  }
};

// Assign and AssignAdd differ in one call.
class WriteRowsOp : public OneTableOp {
 public:
  using OneTableOp::OneTableOp;

 private:
  void Run(tf::OpKernelContext* ctx, const TableSet& set, core::EmbeddingTable& table) override {
    const tf::Tensor& ids = ctx->input(1);
    const tf::Tensor& rows = ctx->input(2);
    const auto n = static_cast<std::size_t>(ids.NumElements());
    OP_REQUIRES_OK(ctx, CheckRows(set.name(), n, table.dim(), rows.NumElements()));
    core::WriteOptions options;
    OP_REQUIRES_OK(ctx, ReadNonNegative(ctx, 3, "req_time", &options.update_time_sec));
    options.filter = set.filter(0);
    const core::Parallel parallel = OnAllThreads(ctx);
    if (WorthThreads(ctx, n, false)) options.parallel = &parallel;
    OP_REQUIRES_OK(ctx, NameTable(Guard([&] {
                                    const NoteTouched note(set, 0, ids.flat<std::int64_t>().data(),
                                                           n);
                                    Write(table, ids.flat<std::int64_t>().data(), n,
                                          rows.flat<float>().data(), options);
                                  }),
                                  set.name()));
    ctx->set_output(0, ctx->input(0));
  }

  virtual void Write(core::EmbeddingTable& table, const std::int64_t* ids, std::size_t n,
                     const float* rows, const core::WriteOptions& options) = 0;
};

class AssignOp final : public WriteRowsOp {
 public:
  using WriteRowsOp::WriteRowsOp;

 private:
  void Write(core::EmbeddingTable& table, const std::int64_t* ids, std::size_t n, const float* rows,
             const core::WriteOptions& options) override {
    table.Assign(ids, n, rows, options);
  }
};

class AssignAddOp final : public WriteRowsOp {
 public:
  using WriteRowsOp::WriteRowsOp;

 private:
  void Write(core::EmbeddingTable& table, const std::int64_t* ids, std::size_t n, const float* rows,
             const core::WriteOptions& options) override {
    table.AssignAdd(ids, n, rows, options);
  }
};

class OptimizeOp final : public OneTableOp {
 public:
  explicit OptimizeOp(tf::OpKernelConstruction* ctx) : OneTableOp(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("use_multi_threads", &use_multi_threads_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("enable_dedup", &enable_dedup_));
  }

 private:
  void Run(tf::OpKernelContext* ctx, const TableSet& set, core::EmbeddingTable& table) override {
    OP_REQUIRES_OK(ctx, CheckForTraining(set));
    const tf::Tensor& ids = ctx->input(1);
    const tf::Tensor& grads = ctx->input(2);
    const tf::Tensor& learning_rates = ctx->input(3);
    const auto n = static_cast<std::size_t>(ids.NumElements());
    OP_REQUIRES_OK(ctx, CheckRows(set.name(), n, table.dim(), grads.NumElements()));
    OP_REQUIRES_OK(ctx, CheckLearningRates(learning_rates, set.num_learning_rates(), set.name()));
    UpdateArguments arguments;
    OP_REQUIRES_OK(ctx, ReadNonNegative(ctx, 4, "req_time", &arguments.update_time_sec));
    OP_REQUIRES_OK(ctx, ReadNonNegative(ctx, 5, "global_step", &arguments.global_step));
    arguments.sum_equal_ids = enable_dedup_;
    const core::Parallel parallel = OnAllThreads(ctx);
    OP_REQUIRES_OK(
        ctx, NameTable(Guard([&] {
                         Optimize(set, 0, table, ids.flat<std::int64_t>().data(), n,
                                  grads.flat<float>().data(), learning_rates.flat<float>().data(),
                                  arguments,
                                  WorthThreads(ctx, n, use_multi_threads_) ? &parallel : nullptr);
                       }),
                       set.name()));
    ctx->set_output(0, ctx->input(0));
  }

  bool use_multi_threads_ = false;
  bool enable_dedup_ = false;
};

class SizeOp final : public OneTableOp {
 public:
  using OneTableOp::OneTableOp;

 private:
  void Run(tf::OpKernelContext* ctx, const TableSet&, core::EmbeddingTable& table) override {
    tf::Tensor* size = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, tf::TensorShape({}), &size));
    size->scalar<std::int64_t>()() = static_cast<std::int64_t>(table.size());
  }
};

class EvictOp final : public OneTableOp {
 public:
  using OneTableOp::OneTableOp;

 private:
  void Run(tf::OpKernelContext* ctx, const TableSet& set, core::EmbeddingTable& table) override {
    std::int64_t max_update_sec = 0;
    OP_REQUIRES_OK(ctx, ReadNonNegative(ctx, 1, "max_update_time", &max_update_sec));
    tf::Tensor* evicted = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(1, tf::TensorShape({}), &evicted));
    OP_REQUIRES_OK(ctx, Guard([&] {
                     evicted->scalar<std::int64_t>()() =
                         static_cast<std::int64_t>(EvictRows(set, 0, table, max_update_sec));
                   }));
    ctx->set_output(0, ctx->input(0));
  }
};

REGISTER_KERNEL_BUILDER(Name("MonolithHashTableLookup").Device(tf::DEVICE_CPU), LookupOp);
REGISTER_KERNEL_BUILDER(Name("MonolithHashTableLookupEntry").Device(tf::DEVICE_CPU), LookupEntryOp);
REGISTER_KERNEL_BUILDER(Name("MonolithHashTableLookupGradient").Device(tf::DEVICE_CPU),
                        LookupGradientOp);
REGISTER_KERNEL_BUILDER(Name("MonolithHashTableAssign").Device(tf::DEVICE_CPU), AssignOp);
REGISTER_KERNEL_BUILDER(Name("MonolithHashTableAssignAdd").Device(tf::DEVICE_CPU), AssignAddOp);
REGISTER_KERNEL_BUILDER(Name("MonolithHashTableOptimize").Device(tf::DEVICE_CPU), OptimizeOp);
REGISTER_KERNEL_BUILDER(Name("MonolithHashTableSize").Device(tf::DEVICE_CPU), SizeOp);
REGISTER_KERNEL_BUILDER(Name("MonolithHashTableEvict").Device(tf::DEVICE_CPU), EvictOp);

}  // namespace
}  // namespace monolith::ops
