// How much each feature contributes to the first dense layer.
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/dense/global_norm.h"
#include "core/dense/segment_matmul.h"
#include "ops/system/parallel.h"
#include "ops/system/sizes.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/framework/tensor.h"

namespace monolith::ops {
namespace {

namespace tf = tensorflow;

using tf::shape_inference::DimensionHandle;
using tf::shape_inference::InferenceContext;
using tf::shape_inference::ShapeHandle;

// Checks the sizes and sums them up.
absl::Status CheckSegmentSizes(const std::vector<std::int64_t>& sizes, std::int64_t* total) {
  bool positive = !sizes.empty();
  *total = 0;
  for (const std::int64_t size : sizes) {
    positive &= size > 0;
    if (positive) *total = SizeSum(*total, size);
  }
  if (!positive) {
    return absl::InvalidArgumentError(
        absl::StrCat("`segment_sizes` must be one or more positive numbers, got [",
                     absl::StrJoin(sizes, ", "), "]."));
  }
  if (*total <= kMostPerDimension) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("`segment_sizes` must have a sum of at most ",
                                                 kMostPerDimension, ", got [",
                                                 absl::StrJoin(sizes, ", "), "]."));
}

// Checks `input_embedding` [batch, dim] and `weight` [dim, units], the op's inputs from `first` on.
absl::Status InferDims(InferenceContext* c, int first, std::vector<std::int64_t>* sizes,
                       DimensionHandle* batch, DimensionHandle* dim, DimensionHandle* units) {
  TF_RETURN_IF_ERROR(c->GetAttr("segment_sizes", sizes));
  std::int64_t total = 0;
  TF_RETURN_IF_ERROR(CheckSegmentSizes(*sizes, &total));
  ShapeHandle input;
  ShapeHandle weight;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(first), 2, &input));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(first + 1), 2, &weight));
  TF_RETURN_IF_ERROR(c->WithValue(c->Dim(input, 1), total, dim));
  TF_RETURN_IF_ERROR(c->Merge(*dim, c->Dim(weight, 0), dim));
  *batch = c->Dim(input, 0);
  *units = c->Dim(weight, 1);
  return absl::OkStatus();
}

REGISTER_OP("MonolithFeatureInsight")
    .Input("input_embedding: T")
    .Input("weight: T")
    .Output("output: T")
    .Attr("segment_sizes: list(int) >= 1")
    .Attr("aggregate: bool = false")
    .Attr("T: {float, double}")
    .SetShapeFn([](InferenceContext* c) {
      std::vector<std::int64_t> sizes;
      DimensionHandle batch, dim, units;
      TF_RETURN_IF_ERROR(InferDims(c, 0, &sizes, &batch, &dim, &units));
      bool aggregate = false;
      TF_RETURN_IF_ERROR(c->GetAttr("aggregate", &aggregate));
      const auto n = static_cast<std::int64_t>(sizes.size());
      DimensionHandle width = c->MakeDim(n);
      if (!aggregate) TF_RETURN_IF_ERROR(c->Multiply(units, n, &width));
      c->set_output(0, c->Matrix(batch, width));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Multiplies each segment of the input's columns by the same rows of the weight.

input_embedding: Matrix [batch, dim], dim the sum of the segment sizes.
weight: Matrix [dim, units].
output: Matrix [batch, n * units] with the products of the n segments side by side; with `aggregate`
  a matrix [batch, n] with the sum of squares of each product's row.
segment_sizes: How many columns belong to each segment.
)doc");

REGISTER_OP("MonolithFeatureInsightGradient")
    .Input("grad: T")
    .Input("input_embedding: T")
    .Input("weight: T")
    .Output("input_gradient: T")
    .Output("weight_gradient: T")
    .Attr("segment_sizes: list(int) >= 1")
    .Attr("T: {float, double}")
    .SetShapeFn([](InferenceContext* c) {
      std::vector<std::int64_t> sizes;
      DimensionHandle batch, dim, units;
      TF_RETURN_IF_ERROR(InferDims(c, 1, &sizes, &batch, &dim, &units));
      c->set_output(0, c->Matrix(batch, dim));
      c->set_output(1, c->Matrix(dim, units));
      return absl::OkStatus();
    })
    .Doc("Gradients of MonolithFeatureInsight without `aggregate`.");

// What both ops have in common: the segments and the check of their two matrices.
class SegmentedOp : public tf::OpKernel {
 public:
  explicit SegmentedOp(tf::OpKernelConstruction* ctx) : tf::OpKernel(ctx) {
    std::vector<std::int64_t> sizes;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("segment_sizes", &sizes));
    std::int64_t total = 0;
    OP_REQUIRES_OK(ctx, CheckSegmentSizes(sizes, &total));
    starts_.push_back(0);
    for (const std::int64_t size : sizes) starts_.push_back(starts_.back() + size);
  }

 protected:
  absl::Status CheckInputs(const tf::Tensor& input, const tf::Tensor& weight,
                           core::Segments* segments) const {
    const auto dim = static_cast<std::int64_t>(starts_.back());
    if (!tf::TensorShapeUtils::IsMatrix(input.shape()) || input.dim_size(1) != dim) {
      return absl::InvalidArgumentError(
          absl::StrCat("`input_embedding` must have the shape [batch, ", dim,
                       "], the sum of `segment_sizes`, got ", input.shape().DebugString(), "."));
    }
    if (!tf::TensorShapeUtils::IsMatrix(weight.shape()) || weight.dim_size(0) != dim) {
      return absl::InvalidArgumentError(absl::StrCat("`weight` must have the shape [", dim,
                                                     ", units] to match `input_embedding`, got ",
                                                     weight.shape().DebugString(), "."));
    }
    segments->starts = starts_;
    segments->units = weight.dim_size(1);
    return absl::OkStatus();
  }

  // Roughly what one row of the input costs, at half a cycle per multiplication.
  static std::int64_t CyclesPerRow(const core::Segments& segments) {
    return static_cast<std::int64_t>(1 + segments.dim() * segments.units / 2);
  }

 private:
  std::vector<std::size_t> starts_;
};

template <typename T>
class FeatureInsightOp final : public SegmentedOp {
 public:
  explicit FeatureInsightOp(tf::OpKernelConstruction* ctx) : SegmentedOp(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("aggregate", &aggregate_));
  }

  void Compute(tf::OpKernelContext* ctx) override {
    const tf::Tensor& input = ctx->input(0);
    const tf::Tensor& weight = ctx->input(1);
    core::Segments segments;
    OP_REQUIRES_OK(ctx, CheckInputs(input, weight, &segments));
    const std::int64_t batch = input.dim_size(0);
    const std::size_t width = aggregate_ ? segments.size() : segments.width();
    OP_REQUIRES_OK(ctx, CheckSize("weight", SizeProduct(batch, static_cast<std::int64_t>(width)),
                                  input.NumElements() + weight.NumElements()));
    tf::Tensor* output = nullptr;
    OP_REQUIRES_OK(
        ctx, ctx->allocate_output(0, tf::TensorShape({batch, static_cast<std::int64_t>(width)}),
                                  &output));

    const T* in = input.flat<T>().data();
    const T* w = weight.flat<T>().data();
    T* out = output->flat<T>().data();
    ParallelFor(ctx, batch, CyclesPerRow(segments), [&](std::int64_t begin, std::int64_t end) {
      if (aggregate_) {
        std::vector<T> products(segments.width());
        for (std::int64_t r = begin; r < end; ++r) {
          core::SegmentMatmul(segments, 1, in + r * segments.dim(), w, products.data());
          for (std::size_t j = 0; j < segments.size(); ++j) {
            out[r * width + j] = static_cast<T>(
                core::SumOfSquares(products.data() + j * segments.units, segments.units));
          }
        }
      } else {
        core::SegmentMatmul(segments, end - begin, in + begin * segments.dim(), w,
                            out + begin * width);
      }
    });
  }

 private:
  bool aggregate_ = false;
};

template <typename T>
class FeatureInsightGradientOp final : public SegmentedOp {
 public:
  using SegmentedOp::SegmentedOp;

  void Compute(tf::OpKernelContext* ctx) override {
    const tf::Tensor& grad = ctx->input(0);
    const tf::Tensor& input = ctx->input(1);
    const tf::Tensor& weight = ctx->input(2);
    core::Segments segments;
    OP_REQUIRES_OK(ctx, CheckInputs(input, weight, &segments));
    const std::int64_t batch = input.dim_size(0);
    const auto width = static_cast<std::int64_t>(segments.width());
    OP_REQUIRES(ctx, grad.dims() == 2 && grad.dim_size(0) == batch && grad.dim_size(1) == width,
                absl::InvalidArgumentError(absl::StrCat("`grad` must have the shape [", batch, ",",
                                                        width, "] of the op's output, got ",
                                                        grad.shape().DebugString(), ".")));
    tf::Tensor* input_gradient = nullptr;
    tf::Tensor* weight_gradient = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, input.shape(), &input_gradient));
    OP_REQUIRES_OK(ctx, ctx->allocate_output(1, weight.shape(), &weight_gradient));

    const T* g = grad.flat<T>().data();
    const T* in = input.flat<T>().data();
    const T* w = weight.flat<T>().data();
    T* d_in = input_gradient->flat<T>().data();
    T* d_w = weight_gradient->flat<T>().data();
    ParallelFor(ctx, batch, CyclesPerRow(segments), [&](std::int64_t begin, std::int64_t end) {
      core::SegmentMatmulInputGradient(segments, end - begin, g + begin * segments.width(), w,
                                       d_in + begin * segments.dim());
    });
    const auto n = static_cast<std::int64_t>(segments.size());
    ParallelFor(ctx, n, 1 + batch * CyclesPerRow(segments) / n,
                [&](std::int64_t begin, std::int64_t end) {
                  for (std::int64_t j = begin; j < end; ++j) {
                    core::SegmentMatmulWeightGradient(segments, j, batch, g, in,
                                                      d_w + segments.starts[j] * segments.units);
                  }
                });
  }
};

#define REGISTER_KERNELS(T)                                                                 \
  REGISTER_KERNEL_BUILDER(                                                                  \
      Name("MonolithFeatureInsight").Device(tf::DEVICE_CPU).TypeConstraint<T>("T"),         \
      FeatureInsightOp<T>);                                                                 \
  REGISTER_KERNEL_BUILDER(                                                                  \
      Name("MonolithFeatureInsightGradient").Device(tf::DEVICE_CPU).TypeConstraint<T>("T"), \
      FeatureInsightGradientOp<T>)
REGISTER_KERNELS(float);
REGISTER_KERNELS(double);
#undef REGISTER_KERNELS

}  // namespace
}  // namespace monolith::ops
