// Ops on admission filters: make one, save and restore it, and let it stop gradients.
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/filter/dummy_filter.h"
#include "core/filter/probabilistic_filter.h"
#include "core/filter/sliding_hash_filter.h"
#include "core/table/table_config.h"
#include "ops/system/handles.h"
#include "ops/system/sizes.h"
#include "ops/system/status_guard.h"
#include "ops/table/filter_files.h"
#include "ops/table/filter_resource.h"
#include "ops/table/snapshot_op.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/framework/tensor.h"

namespace monolith::ops {
namespace {

namespace tf = tensorflow;
using tf::shape_inference::InferenceContext;
using tf::shape_inference::ShapeHandle;

// Two scalars in, a scalar out.
absl::Status FileOpShape(InferenceContext* c) {
  ShapeHandle unused;
  for (int i = 0; i < 2; ++i) TF_RETURN_IF_ERROR(c->WithRank(c->input(i), 0, &unused));
  c->set_output(0, c->Scalar());
  return absl::OkStatus();
}

absl::Status RowsShape(InferenceContext* c) {
  ShapeHandle unused;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 0, &unused));
  c->set_output(0, c->input(2));
  return absl::OkStatus();
}

REGISTER_OP("MonolithHashFilter")
    .Output("handle: resource")
    .Attr("capacity: int >= 0 = 300000000")
    .Attr("split_num: int >= 0 = 7")
    .Attr("config: string = ''")
    .Attr("container: string = ''")
    .Attr("shared_name: string = ''")
    .SetIsStateful()
    .SetShapeFn(tf::shape_inference::ScalarShape)
    .Doc(R"doc(
Makes, or finds by its name, a filter that counts ids and admits one from its slot's threshold on.
`config` is a serialized SlotOccurrenceThresholdConfig.
)doc");

REGISTER_OP("MonolithProbabilisticFilter")
    .Output("handle: resource")
    .Attr("equal_probability: bool = false")
    .Attr("config: string = ''")
    .Attr("container: string = ''")
    .Attr("shared_name: string = ''")
    .SetIsStateful()
    .SetShapeFn(tf::shape_inference::ScalarShape)
    .Doc(R"doc(
Makes, or finds by its name, a filter that admits ids by lot: with probability count / threshold,
or, with `equal_probability`, with the same chance at every occurrence, so that 95 % are admitted
after as many occurrences as the threshold says.
)doc");

REGISTER_OP("MonolithDummyHashFilter")
    .Output("handle: resource")
    .Attr("container: string = ''")
    .Attr("shared_name: string = ''")
    .SetIsStateful()
    .SetShapeFn(tf::shape_inference::ScalarShape)
    .Doc("Makes, or finds by its name, a filter that admits every id.");

REGISTER_OP("MonolithHashFilterSave")
    .Input("handle: resource")
    .Input("basename: string")
    .Output("output_handle: resource")
    .SetIsStateful()
    .SetShapeFn(FileOpShape)
    .Doc(R"doc(
Writes the counts of a filter to files of `basename`, one per split; nothing for a filter without
counts.
)doc");

REGISTER_OP("MonolithHashFilterRestore")
    .Input("handle: resource")
    .Input("basename: string")
    .Output("output_handle: resource")
    .SetIsStateful()
    .SetShapeFn(FileOpShape)
    .Doc(
        "Reads the counts that MonolithHashFilterSave wrote; nothing for a filter without counts.");

REGISTER_OP("MonolithHashFilterInterceptGradient")
    .Input("filter_handle: resource")
    .Input("ids: int64")
    .Input("embeddings: float")
    .Output("same_embeddings: float")
    .SetShapeFn(RowsShape)
    .Doc("Passes `embeddings` on; its gradient is MonolithHashFilterInterceptGradientGradient.");

// Counts occurrences, hence stateful: equal calls must not be merged into one.
REGISTER_OP("MonolithHashFilterInterceptGradientGradient")
    .Input("filter_handle: resource")
    .Input("ids: int64")
    .Input("grad: float")
    .Output("filted_grad: float")
    .SetIsStateful()
    .SetShapeFn(RowsShape)
    .Doc("Counts `ids`, and makes the gradients of those that the filter does not admit 0.");

// Makes the filter of its name, or takes the one that is there if it has the same settings.
class FilterKernel : public tf::ResourceOpKernel<FilterResource> {
 public:
  using ResourceOpKernel::ResourceOpKernel;

 protected:
  [[nodiscard]] virtual std::string Settings() const = 0;
  [[nodiscard]] virtual std::unique_ptr<core::SharedFilter> MakeFilter() const = 0;

 private:
  absl::Status CreateResource(FilterResource** resource) final {
    return Guard([&] { *resource = new FilterResource(MakeFilter(), Settings()); });
  }

  absl::Status VerifyResource(FilterResource* resource) final {
    if (resource->settings() == Settings()) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        "A filter named '", cinfo_.name(), "' exists already as ", resource->settings(),
        ", which is not ", Settings(), "; give the new one another name suffix."));
  }
};

// The part of a filter's settings that says from which occurrence on an id of each slot passes.
class ThresholdAttr {
 public:
  explicit ThresholdAttr(tf::OpKernelConstruction* ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("config", &bytes_));
    OP_REQUIRES_OK(ctx, Guard([&] {
                     config_ = core::ParseSlotOccurrenceThresholdConfig(bytes_);
                     (void)Thresholds();  // Refuses slots that do not exist.
                   }));
  }

  [[nodiscard]] core::SlotThresholds Thresholds() const { return core::SlotThresholds(config_); }
  [[nodiscard]] std::string Describe() const {
    return absl::StrFormat("thresholds #%x (default %d)", std::hash<std::string>()(bytes_),
                           config_.default_occurrence_threshold);
  }

 private:
  std::string bytes_;
  core::SlotOccurrenceThresholdConfig config_;
};

class SlidingFilterKernel final : public FilterKernel {
 public:
  explicit SlidingFilterKernel(tf::OpKernelConstruction* ctx)
      : FilterKernel(ctx), thresholds_(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("capacity", &capacity_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("split_num", &split_num_));
    OP_REQUIRES(
        ctx, capacity_ <= kMostCapacity && split_num_ <= kMostSplits,
        absl::InvalidArgumentError(absl::StrCat(
            "A filter has a capacity of at most ", kMostCapacity, " ids in at most ", kMostSplits,
            " splits, got capacity ", capacity_, " and split_num ", split_num_, ".")));
  }

 private:
  std::string Settings() const override {
    return absl::StrCat("a sliding hash filter of capacity ", capacity_, " in ", split_num_,
                        " splits with ", thresholds_.Describe());
  }
  std::unique_ptr<core::SharedFilter> MakeFilter() const override {
    return std::make_unique<core::SlidingHashFilter>(capacity_, split_num_,
                                                     thresholds_.Thresholds());
  }

  static constexpr std::int64_t kMostCapacity = std::int64_t{1} << 40;  // Terabytes.
  static constexpr std::int64_t kMostSplits = 99999;  // Five digits in the names of their files.

  const ThresholdAttr thresholds_;
  std::int64_t capacity_ = 0;
  std::int64_t split_num_ = 0;
};

class ProbabilisticFilterKernel final : public FilterKernel {
 public:
  explicit ProbabilisticFilterKernel(tf::OpKernelConstruction* ctx)
      : FilterKernel(ctx), thresholds_(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("equal_probability", &equal_probability_));
  }

 private:
  std::string Settings() const override {
    return absl::StrCat("a probabilistic filter of ", equal_probability_ ? "equal" : "unequal",
                        " probability with ", thresholds_.Describe());
  }
  std::unique_ptr<core::SharedFilter> MakeFilter() const override {
    return std::make_unique<core::ProbabilisticFilter>(thresholds_.Thresholds(),
                                                       equal_probability_);
  }

  const ThresholdAttr thresholds_;
  bool equal_probability_ = false;
};

class DummyFilterKernel final : public FilterKernel {
 public:
  using FilterKernel::FilterKernel;

 private:
  std::string Settings() const override { return "a filter that admits everything"; }
  std::unique_ptr<core::SharedFilter> MakeFilter() const override {
    return std::make_unique<core::DummyFilter>();
  }
};

// Saves to, or restores from, the files of `basename`. A filter without state has no files.
template <absl::Status (*kFileFn)(tf::Env*, const std::string&, core::SlidingHashFilter*)>
class FilterFileKernel final : public tf::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(tf::OpKernelContext* ctx) override {
    tf::core::RefCountPtr<FilterResource> filter;
    OP_REQUIRES_OK(ctx, FindResource(ctx, 0, &filter));
    OP_REQUIRES_OK(ctx, CheckRank(ctx->input(1), "basename", 0));
    std::string basename;
    OP_REQUIRES_OK(ctx, ReadBasename(ctx, 1, &basename));
    if (filter->sliding() != nullptr) {
      OP_REQUIRES_OK(ctx, kFileFn(ctx->env(), basename, filter->sliding()));
    }
    ctx->set_output(0, ctx->input(0));
  }
};

// Checks that the leading dimensions of `rows` hold one row per id, and returns a row's length.
absl::Status RowLength(const tf::Tensor& ids, const tf::Tensor& rows, std::int64_t* length) {
  const std::int64_t num_ids = ids.NumElements();
  std::int64_t num_rows = 1;
  int dim = 0;
  // Past a match, dimensions of size 1 belong to the row as well as to the ids.
  while (num_rows != num_ids && dim < rows.dims()) {
    num_rows = SizeProduct(num_rows, rows.dim_size(dim++));
  }
  if (num_rows != num_ids) {
    return absl::InvalidArgumentError(absl::StrCat(
        "There must be one row of embeddings per id, got ids of shape ", ids.shape().DebugString(),
        " and embeddings of shape ", rows.shape().DebugString(), "."));
  }
  *length = 1;
  for (; dim < rows.dims(); ++dim) *length = SizeProduct(*length, rows.dim_size(dim));
  return absl::OkStatus();
}

class InterceptGradientKernel final : public tf::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(tf::OpKernelContext* ctx) override {
    std::int64_t unused = 0;
    OP_REQUIRES_OK(ctx, RowLength(ctx->input(1), ctx->input(2), &unused));
    ctx->set_output(0, ctx->input(2));
  }
};

class InterceptGradientGradientKernel final : public tf::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(tf::OpKernelContext* ctx) override {
    tf::core::RefCountPtr<FilterResource> filter;
    OP_REQUIRES_OK(ctx, FindResource(ctx, 0, &filter));
    const tf::Tensor& ids = ctx->input(1);
    const tf::Tensor& grad = ctx->input(2);
    std::int64_t row_length = 0;
    OP_REQUIRES_OK(ctx, RowLength(ids, grad, &row_length));
    // Filters without counts decide about rows of a table, and there is none here.
    if (filter->sliding() == nullptr) {
      ctx->set_output(0, grad);
      return;
    }
    tf::Tensor* output = nullptr;
    OP_REQUIRES_OK(ctx, ctx->forward_input_or_allocate_output({2}, 0, grad.shape(), &output));
    const auto* id = ids.flat<std::int64_t>().data();
    const float* from = grad.flat<float>().data();
    float* to = output->flat<float>().data();
    OP_REQUIRES_OK(ctx, Guard([&] {
                     for (std::int64_t i = 0; i < ids.NumElements(); ++i) {
                       const bool admitted = filter->sliding()->Admit(id[i], 1);
                       for (std::int64_t j = i * row_length; j < (i + 1) * row_length; ++j) {
                         to[j] = admitted ? from[j] : 0.0f;
                       }
                     }
                   }));
  }
};

REGISTER_KERNEL_BUILDER(Name("MonolithHashFilter").Device(tf::DEVICE_CPU), SlidingFilterKernel);
REGISTER_KERNEL_BUILDER(Name("MonolithProbabilisticFilter").Device(tf::DEVICE_CPU),
                        ProbabilisticFilterKernel);
REGISTER_KERNEL_BUILDER(Name("MonolithDummyHashFilter").Device(tf::DEVICE_CPU), DummyFilterKernel);
REGISTER_KERNEL_BUILDER(Name("MonolithHashFilterSave").Device(tf::DEVICE_CPU),
                        FilterFileKernel<SaveFilter>);
REGISTER_KERNEL_BUILDER(Name("MonolithHashFilterRestore").Device(tf::DEVICE_CPU),
                        FilterFileKernel<RestoreFilter>);
REGISTER_KERNEL_BUILDER(Name("MonolithHashFilterInterceptGradient").Device(tf::DEVICE_CPU),
                        InterceptGradientKernel);
REGISTER_KERNEL_BUILDER(Name("MonolithHashFilterInterceptGradientGradient").Device(tf::DEVICE_CPU),
                        InterceptGradientGradientKernel);

}  // namespace
}  // namespace monolith::ops
