// Rows of each example made one: their sum, their mean, or the norm of each column.
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "ops/distribution/segments.h"
#include "ops/system/sizes.h"
#include "ops/system/tensor_checks.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace monolith::ops {
namespace {

namespace tf = tensorflow;
using tf::shape_inference::DimensionHandle;
using tf::shape_inference::InferenceContext;
using tf::shape_inference::ShapeHandle;

absl::Status ReducedShape(InferenceContext* c) {
  ShapeHandle values;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 2, &values));
  DimensionHandle unused;
  TF_RETURN_IF_ERROR(c->Merge(c->NumElements(c->input(0)), c->Dim(values, 0), &unused));
  DimensionHandle batch = c->UnknownDim();
  const tf::Tensor* length = c->input_tensor(2);
  if (length != nullptr && length->NumElements() == 1 && length->flat<std::int64_t>()(0) >= 0 &&
      length->flat<std::int64_t>()(0) <= kMostPerDimension) {
    batch = c->MakeDim(length->flat<std::int64_t>()(0));
  }
  c->set_output(0, c->Matrix(batch, c->Dim(values, 1)));
  return absl::OkStatus();
}

// The gradients are the last input and have the shape of what was reduced.
absl::Status GradientShape(InferenceContext* c) {
  ShapeHandle grads;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(c->num_inputs() - 1), 2, &grads));
  c->set_output(0, c->Matrix(c->NumElements(c->input(0)), c->Dim(grads, 1)));
  return absl::OkStatus();
}

#define REGISTER_REDUCTION(NAME)      \
  REGISTER_OP(NAME)                   \
      .Input("id_indices: int64")     \
      .Input("id_values: float")      \
      .Input("id_dense_shape: int64") \
      .Output("reduced: float")       \
      .SetShapeFn(ReducedShape)

REGISTER_REDUCTION("MonolithReduceSum").Doc("Sums the rows of each example; none give zeros.");
REGISTER_REDUCTION("MonolithReduceMean")
    .Doc("Returns the mean of the rows of each example; none give zeros.");
REGISTER_REDUCTION("MonolithReduceSquareNorm")
    .Doc("Returns for each example and column the root of the sum of squares.");
#undef REGISTER_REDUCTION

REGISTER_OP("MonolithReduceSumGradient")
    .Input("id_indices: int64")
    .Input("grads: float")
    .Output("id_values_grads: float")
    .SetShapeFn(GradientShape)
    .Doc("Gives each row the gradient of its example's sum.");

REGISTER_OP("MonolithReduceMeanGradient")
    .Input("id_indices: int64")
    .Input("grads: float")
    .Output("id_values_grads: float")
    .SetShapeFn(GradientShape)
    .Doc(R"doc(
Gives each row the gradient of its example's mean, divided by the number of rows of the example.
)doc");

REGISTER_OP("MonolithReduceSquareNormGradient")
    .Input("id_indices: int64")
    .Input("id_values: float")
    .Input("grads: float")
    .Output("id_values_grads: float")
    .SetShapeFn(GradientShape)
    .Doc(R"doc(
Gives each row its share in the gradient of its example's norms; zeros where the norm is 0.
)doc");

enum class Reduction { kSum, kMean, kSquareNorm };

// Reduces the `num_rows` rows of one example into `out`; `row_at(k)` is the k-th of them.
template <Reduction kReduction, typename RowAt>
void Reduce(const RowAt& row_at, std::int64_t num_rows, std::int64_t dim, float* out) {
  std::fill_n(out, dim, 0.0F);
  for (std::int64_t k = 0; k < num_rows; ++k) {
    const float* row = row_at(k);
    for (std::int64_t d = 0; d < dim; ++d) {
      out[d] += kReduction == Reduction::kSquareNorm ? row[d] * row[d] : row[d];
    }
  }
  for (std::int64_t d = 0; d < dim; ++d) {
    if (kReduction == Reduction::kSquareNorm) out[d] = std::sqrt(out[d]);
    if (kReduction == Reduction::kMean && num_rows > 0) out[d] /= static_cast<float>(num_rows);
  }
}

template <Reduction kReduction>
class ReduceOp final : public tf::OpKernel {
 public:
  using tf::OpKernel::OpKernel;

  void Compute(tf::OpKernelContext* ctx) override {
    const tf::Tensor& values = ctx->input(1);
    OP_REQUIRES_OK(ctx, CheckRank(values, "id_values", 2));
    OP_REQUIRES_OK(ctx, CheckNumElements(ctx->input(0), "id_indices", values.dim_size(0),
                                         "one for each row of `id_values`"));
    OP_REQUIRES_OK(ctx,
                   CheckNumElements(ctx->input(2), "id_dense_shape", 1, "the number of examples"));
    const std::int64_t batch = ctx->input(2).flat<std::int64_t>()(0);
    OP_REQUIRES(ctx, batch >= 0,
                absl::InvalidArgumentError(
                    absl::StrCat("`id_dense_shape` must not be negative, got ", batch, ".")));
    Segments segments;
    OP_REQUIRES_OK(ctx, segments.Init(Flat<std::int64_t>(ctx->input(0)), batch, "id_indices"));

    const std::int64_t dim = values.dim_size(1);
    OP_REQUIRES_OK(ctx, CheckSize("id_dense_shape", SizeProduct(batch, dim), values.NumElements()));
    tf::TensorShape shape;
    OP_REQUIRES_OK(ctx, MakeShape({batch, dim}, &shape));
    tf::Tensor* output = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, shape, &output));
    if (shape.num_elements() == 0) return;  // However many examples that are.
    float* reduced = output->flat<float>().data();
    const float* rows = values.flat<float>().data();
    segments.ForEach(ctx, dim,
                     [&](std::int64_t example, const auto& row_at, std::int64_t num_rows) {
                       const auto row = [&](std::int64_t k) { return rows + row_at(k) * dim; };
                       Reduce<kReduction>(row, num_rows, dim, reduced + example * dim);
                     });
  }
};

template <Reduction kReduction>
class ReduceGradientOp final : public tf::OpKernel {
 public:
  using tf::OpKernel::OpKernel;

  void Compute(tf::OpKernelContext* ctx) override {
    const tf::Tensor& grads = ctx->input(ctx->num_inputs() - 1);
    OP_REQUIRES_OK(ctx, CheckRank(grads, "grads", 2));
    const std::int64_t dim = grads.dim_size(1);
    const std::int64_t num_rows = ctx->input(0).NumElements();
    const float* rows = nullptr;
    if (kReduction == Reduction::kSquareNorm) {
      const tf::Tensor& values = ctx->input(1);
      OP_REQUIRES(ctx,
                  values.dims() == 2 && values.dim_size(0) == num_rows && values.dim_size(1) == dim,
                  absl::InvalidArgumentError(
                      absl::StrCat("`id_values` must have shape [", num_rows, ",", dim,
                                   "]: a row for each of `id_indices`, as wide as `grads`; got ",
                                   values.shape().DebugString(), ".")));
      rows = values.flat<float>().data();
    }
    Segments segments;
    OP_REQUIRES_OK(
        ctx, segments.Init(Flat<std::int64_t>(ctx->input(0)), grads.dim_size(0), "id_indices"));
    tf::TensorShape shape;
    OP_REQUIRES_OK(ctx, MakeShape({num_rows, dim}, &shape));
    tf::Tensor* output = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, shape, &output));
    if (shape.num_elements() == 0) return;  // However many examples that are.
    float* out = output->flat<float>().data();
    const float* all_grads = grads.flat<float>().data();
    segments.ForEach(ctx, dim, [&](std::int64_t example, const auto& row_at, std::int64_t count) {
      const float* grad = all_grads + example * dim;
      for (std::int64_t d = 0; d < dim; ++d) {
        float factor = grad[d];
        if (kReduction == Reduction::kMean && count > 0) factor /= static_cast<float>(count);
        if (kReduction == Reduction::kSquareNorm) {
          float sum = 0;
          for (std::int64_t k = 0; k < count; ++k) {
            const float value = rows[row_at(k) * dim + d];
            sum += value * value;
          }
          factor = sum == 0 ? 0 : factor / std::sqrt(sum);
        }
        for (std::int64_t k = 0; k < count; ++k) {
          const std::int64_t place = row_at(k) * dim + d;
          out[place] = kReduction == Reduction::kSquareNorm ? rows[place] * factor : factor;
        }
      }
    });
  }
};

#define REGISTER_KERNELS(NAME, REDUCTION)                                          \
  REGISTER_KERNEL_BUILDER(Name(NAME).Device(tf::DEVICE_CPU), ReduceOp<REDUCTION>); \
  REGISTER_KERNEL_BUILDER(Name(NAME "Gradient").Device(tf::DEVICE_CPU), ReduceGradientOp<REDUCTION>)
REGISTER_KERNELS("MonolithReduceSum", Reduction::kSum);
REGISTER_KERNELS("MonolithReduceMean", Reduction::kMean);
REGISTER_KERNELS("MonolithReduceSquareNorm", Reduction::kSquareNorm);
#undef REGISTER_KERNELS

}  // namespace
}  // namespace monolith::ops
