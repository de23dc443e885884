// Sums of the rows of each example, cut into the slices that a model uses, in one pass.
#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "ops/distribution/rows.h"
#include "ops/distribution/segments.h"
#include "ops/system/kept_outputs.h"
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

absl::Status GetSplitDims(InferenceContext* c, std::vector<std::int32_t>* split_dims) {
  TF_RETURN_IF_ERROR(c->GetAttr("split_dims", split_dims));
  std::int32_t m = 0;
  TF_RETURN_IF_ERROR(c->GetAttr("M", &m));
  if (static_cast<std::size_t>(m) != split_dims->size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("`split_dims` must have M = ", m, " elements, got ", split_dims->size(), "."));
  }
  for (const std::int32_t dim : *split_dims) {
    if (dim <= 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("`split_dims` must be positive, got ", dim, "."));
    }
  }
  return absl::OkStatus();
}

REGISTER_OP("MonolithFusedReduceSumAndSplit")
    .Input("id_indices: int64")
    .Input("id_values: float")
    .Input("id_dense_shape: int64")
    .Output("reduced: M * float")
    .Attr("M: int >= 1")
    .Attr("split_dims: list(int)")
    .SetShapeFn([](InferenceContext* c) {
      std::vector<std::int32_t> split_dims;
      TF_RETURN_IF_ERROR(GetSplitDims(c, &split_dims));
      ShapeHandle values;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 2, &values));
      DimensionHandle unused;
      TF_RETURN_IF_ERROR(c->Merge(c->NumElements(c->input(0)), c->Dim(values, 0), &unused));
      const std::int64_t width =
          std::accumulate(split_dims.begin(), split_dims.end(), std::int64_t{0});
      TF_RETURN_IF_ERROR(c->WithValue(c->Dim(values, 1), width, &unused));
      DimensionHandle batch = c->UnknownDim();
      const tf::Tensor* length = c->input_tensor(2);
      if (length != nullptr && length->NumElements() == 1 && length->flat<std::int64_t>()(0) >= 0 &&
          length->flat<std::int64_t>()(0) <= kMostPerDimension) {
        batch = c->MakeDim(length->flat<std::int64_t>()(0));
      }
      for (std::size_t i = 0; i < split_dims.size(); ++i) {
        c->set_output(static_cast<int>(i), c->Matrix(batch, split_dims[i]));
      }
      return absl::OkStatus();
    })
    .Doc(R"doc(
Sums rows by example and cuts the sums into slices.

id_indices: For each row the example it belongs to, within [0, batch); in any order.
id_values: The rows, [rows, sum of split_dims].
id_dense_shape: The number of examples, one element.
reduced: For each slice a tensor [batch, split_dims[i]]; zeros for examples without rows.
)doc");

REGISTER_OP("MonolithFusedReduceSumAndSplitGradient")
    .Input("id_indices: int64")
    .Input("grads: M * float")
    .Output("output_grad: float")
    .Attr("M: int >= 1")
    .Attr("split_dims: list(int)")
    .SetShapeFn([](InferenceContext* c) {
      std::vector<std::int32_t> split_dims;
      TF_RETURN_IF_ERROR(GetSplitDims(c, &split_dims));
      c->set_output(
          0, c->Matrix(c->NumElements(c->input(0)),
                       std::accumulate(split_dims.begin(), split_dims.end(), std::int64_t{0})));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Hands the gradients of the slices of each example to all its rows.
)doc");

// Where each slice stands in a row.
struct Slice {
  std::int64_t start;
  std::int64_t dim;
};

class SlicedOp : public tf::OpKernel {
 public:
  explicit SlicedOp(tf::OpKernelConstruction* ctx) : tf::OpKernel(ctx) {
    std::vector<std::int32_t> split_dims;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("split_dims", &split_dims));
    std::int32_t m = 0;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("M", &m));
    OP_REQUIRES(ctx, static_cast<std::size_t>(m) == split_dims.size(),
                absl::InvalidArgumentError(absl::StrCat(
                    "`split_dims` must have M = ", m, " elements, got ", split_dims.size(), ".")));
    for (const std::int32_t dim : split_dims) {
      OP_REQUIRES(ctx, dim > 0,
                  absl::InvalidArgumentError(
                      absl::StrCat("`split_dims` must be positive, got ", dim, ".")));
      slices_.push_back({width_, dim});
      width_ += dim;
    }
  }

 protected:
  std::vector<Slice> slices_;
  std::int64_t width_ = 0;
};

// Whether every example has one id, in order: then there is nothing to sum, and nothing to copy.
template <typename Indices>
bool IsOneForEach(const Indices& indices, std::int64_t batch) {
  if (static_cast<std::int64_t>(indices.size()) != batch) return false;
  for (std::int64_t n = 0; n < batch; ++n) {
    if (indices[n] != n) return false;
  }
  return true;
}

class FusedReduceSumAndSplitOp final : public SlicedOp {
 public:
  using SlicedOp::SlicedOp;

  void Compute(tf::OpKernelContext* ctx) override {
    const tf::Tensor& values = ctx->input(1);
    OP_REQUIRES_OK(ctx, CheckRank(values, "id_values", 2));
    OP_REQUIRES(ctx, values.dim_size(1) == width_,
                absl::InvalidArgumentError(absl::StrCat(
                    "`id_values` must have rows of ", width_, " floats, the sum of `split_dims`, ",
                    "got shape ", values.shape().DebugString(), ".")));
    OP_REQUIRES_OK(ctx, CheckNumElements(ctx->input(0), "id_indices", values.dim_size(0),
                                         "one for each row of `id_values`"));
    OP_REQUIRES_OK(ctx,
                   CheckNumElements(ctx->input(2), "id_dense_shape", 1, "the number of examples"));
    const std::int64_t batch = ctx->input(2).flat<std::int64_t>()(0);
    OP_REQUIRES(ctx, batch >= 0,
                absl::InvalidArgumentError(
                    absl::StrCat("`id_dense_shape` must not be negative, got ", batch, ".")));
    if (slices_.size() == 1 && IsOneForEach(Flat<std::int64_t>(ctx->input(0)), batch)) {
      ctx->set_output(0, values);
      return;
    }
    OP_REQUIRES_OK(ctx,
                   CheckSize("id_dense_shape", SizeProduct(batch, width_), values.NumElements()));
    Segments segments;
    OP_REQUIRES_OK(ctx, segments.Init(Flat<std::int64_t>(ctx->input(0)), batch, "id_indices"));

    std::vector<float*> reduced(slices_.size());
    for (std::size_t i = 0; i < slices_.size(); ++i) {
      tf::TensorShape shape;
      OP_REQUIRES_OK(ctx, MakeShape({batch, slices_[i].dim}, &shape));
      OP_REQUIRES_OK(ctx, outputs_.Allocate(ctx, static_cast<int>(i), shape, &reduced[i]));
    }
    const float* rows = values.flat<float>().data();
    segments.ForEach(ctx, width_,
                     [&](std::int64_t example, const auto& row_at, std::int64_t num_rows) {
                       for (std::size_t i = 0; i < slices_.size(); ++i) {
                         const auto [start, dim] = slices_[i];
                         float* sum = reduced[i] + example * dim;
                         if (num_rows == 0) {
                           std::fill_n(sum, dim, 0.0F);
                           continue;
                         }
                         std::copy_n(rows + row_at(0) * width_ + start, dim, sum);
                         for (std::int64_t k = 1; k < num_rows; ++k) {
                           AddRow(rows + row_at(k) * width_ + start, dim, sum);
                         }
                       }
                     });
  }

 private:
  KeptOutputs outputs_;
};

class FusedReduceSumAndSplitGradientOp final : public SlicedOp {
 public:
  using SlicedOp::SlicedOp;

  void Compute(tf::OpKernelContext* ctx) override {
    const auto indices = Flat<std::int64_t>(ctx->input(0));
    std::vector<const float*> grads(slices_.size());
    const std::int64_t batch = ctx->input(1).dims() == 2 ? ctx->input(1).dim_size(0) : 0;
    for (std::size_t i = 0; i < slices_.size(); ++i) {
      const tf::Tensor& grad = ctx->input(static_cast<int>(i) + 1);
      OP_REQUIRES(
          ctx, grad.dims() == 2 && grad.dim_size(0) == batch && grad.dim_size(1) == slices_[i].dim,
          absl::InvalidArgumentError(absl::StrCat("Gradient ", i, " of `grads` must have shape [",
                                                  batch, ",", slices_[i].dim, "], got ",
                                                  grad.shape().DebugString(), ".")));
      grads[i] = grad.flat<float>().data();
    }
    if (slices_.size() == 1 && IsOneForEach(indices, batch)) {
      ctx->set_output(0, ctx->input(1));
      return;
    }
    for (std::size_t n = 0; n < indices.size(); ++n) {
      OP_REQUIRES(ctx, indices[n] >= 0 && indices[n] < batch,
                  BadIndex("id_indices", static_cast<std::int64_t>(n), indices[n], batch));
    }
    float* output = nullptr;
    const auto num_rows = static_cast<std::int64_t>(indices.size());
    tf::TensorShape shape;
    OP_REQUIRES_OK(ctx, MakeShape({num_rows, width_}, &shape));
    OP_REQUIRES_OK(ctx, outputs_.Allocate(ctx, 0, shape, &output));
    ParallelFor(ctx, num_rows, width_, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t n = begin; n < end; ++n) {
        for (std::size_t i = 0; i < slices_.size(); ++i) {
          const auto [start, dim] = slices_[i];
          std::copy_n(grads[i] + indices[n] * dim, dim, output + n * width_ + start);
        }
      }
    });
  }

 private:
  KeptOutputs outputs_;
};

REGISTER_KERNEL_BUILDER(Name("MonolithFusedReduceSumAndSplit").Device(tf::DEVICE_CPU),
                        FusedReduceSumAndSplitOp);
REGISTER_KERNEL_BUILDER(Name("MonolithFusedReduceSumAndSplitGradient").Device(tf::DEVICE_CPU),
                        FusedReduceSumAndSplitGradientOp);

}  // namespace
}  // namespace monolith::ops
