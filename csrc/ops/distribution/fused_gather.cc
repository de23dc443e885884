// Rows of several slots taken from, and gradients added into, one flat vector.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "ops/system/kept_outputs.h"
#include "ops/system/parallel.h"
#include "ops/system/sizes.h"
#include "ops/system/tensor_checks.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace monolith::ops {
namespace {

namespace tf = tensorflow;
using tf::shape_inference::InferenceContext;
using tf::shape_inference::ShapeHandle;

absl::Status CheckDims(const std::vector<std::int64_t>& dims, int m) {
  if (dims.size() != static_cast<std::size_t>(m)) {
    return absl::InvalidArgumentError(
        absl::StrCat("`embedding_dims` must have M = ", m, " elements, got ", dims.size(), "."));
  }
  for (const std::int64_t dim : dims) {
    if (dim <= 0 || dim > kMostPerDimension) {
      return absl::InvalidArgumentError(absl::StrCat(
          "`embedding_dims` must be positive and at most ", kMostPerDimension, ", got ", dim, "."));
    }
  }
  return absl::OkStatus();
}

REGISTER_OP("MonolithFusedGatherEmbeddingsByInput")
    .Input("fused_embeddings: float")
    .Input("embedding_offsets: M * int32")
    .Output("output: M * float")
    .Attr("embedding_dims: list(int)")
    .Attr("M: int >= 1")
    .SetShapeFn([](InferenceContext* c) {
      std::vector<std::int64_t> dims;
      TF_RETURN_IF_ERROR(c->GetAttr("embedding_dims", &dims));
      const int m = c->num_outputs();
      TF_RETURN_IF_ERROR(CheckDims(dims, m));
      for (int i = 0; i < m; ++i) {
        c->set_output(i, c->Matrix(c->NumElements(c->input(i + 1)), c->MakeDim(dims[i])));
      }
      return absl::OkStatus();
    })
    .Doc(R"doc(
Takes the rows of each slot from where `embedding_offsets` says.
)doc");

REGISTER_OP("MonolithFusedGatherEmbeddingsByInputGradient")
    .Input("fused_embeddings_size: int32")
    .Input("grads: M * float")
    .Input("embedding_offsets: M * int32")
    .Input("scale: float")
    .Output("output: float")
    .Attr("embedding_dims: list(int)")
    .Attr("M: int >= 1")
    .SetShapeFn([](InferenceContext* c) {
      std::vector<std::int64_t> dims;
      TF_RETURN_IF_ERROR(c->GetAttr("embedding_dims", &dims));
      TF_RETURN_IF_ERROR(CheckDims(dims, (c->num_inputs() - 2) / 2));
      const tf::Tensor* size = c->input_tensor(0);
      const bool known =
          size != nullptr && size->NumElements() == 1 && size->flat<std::int32_t>()(0) >= 0;
      c->set_output(
          0, c->Vector(known ? size->flat<std::int32_t>()(0) : InferenceContext::kUnknownDim));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Adds the gradients of all rows, times `scale`, into a vector of `fused_embeddings_size` floats.
)doc");

// Checks that a row of `dim` floats at each offset is inside of a vector of `size` floats.
absl::Status CheckOffsets(absl::Span<const std::int32_t> offsets, int slot, std::int64_t dim,
                          std::int64_t size) {
  for (std::size_t i = 0; i < offsets.size(); ++i) {
    if (offsets[i] < 0 || offsets[i] > size - dim) {
      return absl::InvalidArgumentError(absl::StrCat(
          "A row of ", dim, " floats at offset ", offsets[i], " (element ", i,
          " of `embedding_offsets` ", slot, ") is not inside of ", size, " fused floats."));
    }
  }
  return absl::OkStatus();
}

class FusedGatherEmbeddingsByInputOp final : public tf::OpKernel {
 public:
  explicit FusedGatherEmbeddingsByInputOp(tf::OpKernelConstruction* ctx) : tf::OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("embedding_dims", &dims_));
    OP_REQUIRES_OK(ctx, CheckDims(dims_, ctx->num_outputs()));
  }

  void Compute(tf::OpKernelContext* ctx) override {
    const auto fused = Flat<float>(ctx->input(0));
    for (std::size_t slot = 0; slot < dims_.size(); ++slot) {
      const int input = static_cast<int>(slot) + 1;
      const std::int64_t dim = dims_[slot];
      const auto offsets = Flat<std::int32_t>(ctx->input(input));
      OP_REQUIRES_OK(
          ctx, CheckOffsets(offsets, input - 1, dim, static_cast<std::int64_t>(fused.size())));
      const auto num_rows = static_cast<std::int64_t>(offsets.size());
      tf::TensorShape shape;
      OP_REQUIRES_OK(ctx, MakeShape({num_rows, dim}, &shape));
      float* rows = nullptr;
      OP_REQUIRES_OK(ctx, outputs_.Allocate(ctx, input - 1, shape, &rows));
      ParallelFor(ctx, num_rows, 5 + dim, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) {
          std::copy_n(fused.data() + offsets[i], dim, rows + i * dim);
        }
      });
    }
  }

 private:
  std::vector<std::int64_t> dims_;
  KeptOutputs outputs_;
};

class FusedGatherEmbeddingsByInputGradientOp final : public tf::OpKernel {
 public:
  explicit FusedGatherEmbeddingsByInputGradientOp(tf::OpKernelConstruction* ctx)
      : tf::OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("embedding_dims", &dims_));
    OP_REQUIRES_OK(ctx, CheckDims(dims_, (ctx->num_inputs() - 2) / 2));
  }

  void Compute(tf::OpKernelContext* ctx) override {
    const int num_slots = static_cast<int>(dims_.size());
    OP_REQUIRES_OK(ctx, CheckNumElements(ctx->input(0), "fused_embeddings_size", 1, "a number"));
    OP_REQUIRES_OK(ctx, CheckNumElements(ctx->input(2 * num_slots + 1), "scale", 1, "a number"));
    const std::int64_t size = ctx->input(0).flat<std::int32_t>()(0);
    const float scale = ctx->input(2 * num_slots + 1).flat<float>()(0);
    OP_REQUIRES(ctx, size >= 0,
                absl::InvalidArgumentError(
                    absl::StrCat("`fused_embeddings_size` must not be negative, got ", size, ".")));
    std::int64_t num_grads = 0;
    for (int slot = 0; slot < num_slots; ++slot) num_grads += ctx->input(1 + slot).NumElements();
    OP_REQUIRES_OK(ctx, CheckSize("fused_embeddings_size", size, num_grads));
    float* sums = nullptr;
    OP_REQUIRES_OK(ctx, outputs_.Allocate(ctx, 0, tf::TensorShape({size}), &sums));
    std::fill_n(sums, size, 0.0F);
    for (int slot = 0; slot < num_slots; ++slot) {
      const std::int64_t dim = dims_[slot];
      const tf::Tensor& grads = ctx->input(1 + slot);
      const auto offsets = Flat<std::int32_t>(ctx->input(1 + num_slots + slot));
      OP_REQUIRES_OK(ctx, CheckOffsets(offsets, slot, dim, size));
      OP_REQUIRES(ctx, grads.NumElements() == static_cast<std::int64_t>(offsets.size()) * dim,
                  absl::InvalidArgumentError(absl::StrCat(
                      "Gradient ", slot, " of `grads` must have ", offsets.size(), " rows of ", dim,
                      " floats, got shape ", grads.shape().DebugString(), ".")));
      const float* grad = grads.flat<float>().data();
      for (const std::int32_t offset : offsets) {
        for (std::int64_t d = 0; d < dim; ++d) sums[offset + d] += scale * grad[d];
        grad += dim;
      }
    }
  }

 private:
  std::vector<std::int64_t> dims_;
  KeptOutputs outputs_;
};

REGISTER_KERNEL_BUILDER(Name("MonolithFusedGatherEmbeddingsByInput").Device(tf::DEVICE_CPU),
                        FusedGatherEmbeddingsByInputOp);
REGISTER_KERNEL_BUILDER(Name("MonolithFusedGatherEmbeddingsByInputGradient").Device(tf::DEVICE_CPU),
                        FusedGatherEmbeddingsByInputGradientOp);

}  // namespace
}  // namespace monolith::ops
