// Helpers for ragged tensors.
#include <algorithm>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "ops/system/parallel.h"
#include "ops/system/sizes.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/framework/tensor.h"

namespace monolith::ops {
namespace {

namespace tf = tensorflow;

REGISTER_OP("MonolithFusedValueRowids")
    .Input("splits: int64")
    .Output("rowids: int64")
    .SetShapeFn([](tf::shape_inference::InferenceContext* c) {
      tf::shape_inference::ShapeHandle splits;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 1, &splits));
      std::int64_t values = tf::shape_inference::InferenceContext::kUnknownDim;
      const tf::Tensor* constant = c->input_tensor(0);
      if (constant != nullptr && constant->NumElements() > 0) {
        values = std::max<std::int64_t>(constant->vec<std::int64_t>()(constant->NumElements() - 1),
                                        values);
      }
      c->set_output(0, c->Vector(values));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Says for each value of a ragged tensor which row it belongs to.

splits: Row splits: the first is 0, and none is smaller than the one before.
rowids: For each value the number of its row.
)doc");

// Returns what is wrong with `splits`, or OK.
absl::Status CheckSplits(const std::int64_t* splits, std::int64_t n) {
  if (n == 0) {
    return absl::InvalidArgumentError(
        "`splits` must have at least one element, the start of the first row, but it is empty.");
  }
  if (splits[0] != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("`splits` must start with 0, got ", splits[0], "."));
  }
  for (std::int64_t i = 1; i < n; ++i) {
    if (splits[i] < splits[i - 1]) {
      return absl::InvalidArgumentError(absl::StrCat("`splits` must not decrease, but element ", i,
                                                     " is ", splits[i], " after ", splits[i - 1],
                                                     "."));
    }
  }
  return absl::OkStatus();
}

class FusedValueRowidsOp : public tf::OpKernel {
 public:
  using tf::OpKernel::OpKernel;

  void Compute(tf::OpKernelContext* ctx) override {
    const tf::Tensor& splits_tensor = ctx->input(0);
    OP_REQUIRES(ctx, tf::TensorShapeUtils::IsVector(splits_tensor.shape()),
                absl::InvalidArgumentError(absl::StrCat("`splits` must be a vector, got shape ",
                                                        splits_tensor.shape().DebugString(), ".")));
    const std::int64_t n = splits_tensor.NumElements();
    const std::int64_t* splits = splits_tensor.vec<std::int64_t>().data();
    OP_REQUIRES_OK(ctx, CheckSplits(splits, n));

    const std::int64_t values = splits[n - 1];
    OP_REQUIRES_OK(ctx, CheckSize("splits", values, n));
    tf::Tensor* output = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, tf::TensorShape({values}), &output));
    std::int64_t* rowids = output->vec<std::int64_t>().data();
    if (values == 0) return;

    // Split by value, not by row: one long row must not keep a single thread busy.
    const std::int64_t cycles_per_value = 1 + n / values;
    ParallelFor(ctx, values, cycles_per_value, [=](std::int64_t begin, std::int64_t end) {
      // The last row that starts at or before `begin`, which is the one that holds it.
      std::int64_t row = std::upper_bound(splits, splits + n, begin) - splits - 1;
      for (std::int64_t i = begin; i < end; ++row) {
        const std::int64_t row_end = std::min(splits[row + 1], end);
        std::fill(rowids + i, rowids + std::max(i, row_end), row);
        i = std::max(i, row_end);
      }
    });
  }
};

REGISTER_KERNEL_BUILDER(Name("MonolithFusedValueRowids").Device(tf::DEVICE_CPU),
                        FusedValueRowidsOp);

}  // namespace
}  // namespace monolith::ops
