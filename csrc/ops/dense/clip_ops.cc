// The norm of a list of tensors taken together, and their scaling down to a limit.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/dense/global_norm.h"
#include "ops/system/kept_outputs.h"
#include "ops/system/parallel.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/framework/tensor.h"

namespace monolith::ops {
namespace {

namespace tf = tensorflow;

using tf::shape_inference::InferenceContext;
using tf::shape_inference::ShapeHandle;

REGISTER_OP("MonolithGlobalNorm")
    .Input("grad_list: N * T")
    .Output("global_norm: T")
    .Attr("N: int >= 1")
    .Attr("T: {float, double}")
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->Scalar());
      return absl::OkStatus();
    })
    .Doc(R"doc(
Returns the L2 norm of all elements of all tensors; the sum is made in float64.
)doc");

REGISTER_OP("MonolithClipByGlobalNorm")
    .Input("grad_list: N * T")
    .Input("global_norm: T")
    .Input("clip_norm: T")
    .Output("clip_grad_list: N * T")
    .Attr("N: int >= 1")
    .Attr("T: {float, double}")
    .SetShapeFn([](InferenceContext* c) {
      int n;
      TF_RETURN_IF_ERROR(c->GetAttr("N", &n));
      ShapeHandle unused;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(n), 0, &unused));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(n + 1), 0, &unused));
      for (int i = 0; i < n; ++i) c->set_output(i, c->input(i));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Multiplies all tensors by clip_norm / global_norm if global_norm > clip_norm; otherwise passes them on.

An input is never written to. An infinite norm turns infinite elements into NaN and others into 0.
)doc");

// A piece of one tensor. Pieces have a fixed size, so that sums do not depend on the thread count.
struct Piece {
  int tensor;
  std::int64_t begin;
  std::int64_t end;
};

constexpr std::int64_t kPieceElements = 16 * 1024;
constexpr std::int64_t kCyclesPerPiece = kPieceElements / 4;

std::vector<Piece> SplitIntoPieces(const std::vector<std::int64_t>& sizes) {
  std::vector<Piece> pieces;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    for (std::int64_t begin = 0; begin < sizes[i]; begin += kPieceElements) {
      pieces.push_back({static_cast<int>(i), begin, std::min(begin + kPieceElements, sizes[i])});
    }
  }
  return pieces;
}

template <typename T>
class GlobalNormOp : public tf::OpKernel {
 public:
  using tf::OpKernel::OpKernel;

  void Compute(tf::OpKernelContext* ctx) override {
    const int n = ctx->num_inputs();
    std::vector<const T*> data(n);
    std::vector<std::int64_t> sizes(n);
    for (int i = 0; i < n; ++i) {
      data[i] = ctx->input(i).flat<T>().data();
      sizes[i] = ctx->input(i).NumElements();
    }
    const std::vector<Piece> pieces = SplitIntoPieces(sizes);
    std::vector<double> sums(pieces.size());
    ParallelFor(ctx, pieces.size(), kCyclesPerPiece, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t p = begin; p < end; ++p) {
        const Piece& piece = pieces[p];
        sums[p] = core::SumOfSquares(data[piece.tensor] + piece.begin, piece.end - piece.begin);
      }
    });
    double sum = 0;
    for (const double piece_sum : sums) sum += piece_sum;

    tf::Tensor* norm = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, tf::TensorShape({}), &norm));
    norm->scalar<T>()() = static_cast<T>(std::sqrt(sum));
  }
};

template <typename T>
class ClipByGlobalNormOp : public tf::OpKernel {
 public:
  using tf::OpKernel::OpKernel;

  void Compute(tf::OpKernelContext* ctx) override {
    const int n = ctx->num_inputs() - 2;
    T norm = 0;
    T limit = 0;
    OP_REQUIRES_OK(ctx, ReadScalar(ctx->input(n), "global_norm", &norm));
    OP_REQUIRES_OK(ctx, ReadScalar(ctx->input(n + 1), "clip_norm", &limit));
    OP_REQUIRES(ctx, limit >= 0,
                absl::InvalidArgumentError(
                    absl::StrCat("`clip_norm` must be zero or positive, got ", limit, ".")));

    if (!(norm > limit)) {
      for (int i = 0; i < n; ++i) ctx->set_output(i, ctx->input(i));
      return;
    }
    std::vector<const T*> from(n);
    std::vector<T*> to(n);
    std::vector<std::int64_t> sizes(n);
    for (int i = 0; i < n; ++i) {
      const tf::Tensor& input = ctx->input(i);
      // Never the input's own buffer: that would change what others may hold.
      OP_REQUIRES_OK(ctx, outputs_.Allocate(ctx, i, input.shape(), &to[i]));
      from[i] = input.flat<T>().data();
      sizes[i] = input.NumElements();
    }
    const T scale = limit / norm;
    const std::vector<Piece> pieces = SplitIntoPieces(sizes);
    ParallelFor(ctx, pieces.size(), kCyclesPerPiece, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t p = begin; p < end; ++p) {
        const Piece& piece = pieces[p];
        core::Scale(from[piece.tensor] + piece.begin, piece.end - piece.begin, scale,
                    to[piece.tensor] + piece.begin);
      }
    });
  }

 private:
  static absl::Status ReadScalar(const tf::Tensor& tensor, const char* name, T* value) {
    if (!tf::TensorShapeUtils::IsScalar(tensor.shape())) {
      return absl::InvalidArgumentError(absl::StrCat("`", name, "` must be a scalar, got shape ",
                                                     tensor.shape().DebugString(), "."));
    }
    *value = tensor.scalar<T>()();
    return absl::OkStatus();
  }

  KeptOutputs outputs_;
};

#define REGISTER_KERNELS(T)                                                                       \
  REGISTER_KERNEL_BUILDER(                                                                        \
      Name("MonolithGlobalNorm").Device(tf::DEVICE_CPU).TypeConstraint<T>("T"), GlobalNormOp<T>); \
  REGISTER_KERNEL_BUILDER(                                                                        \
      Name("MonolithClipByGlobalNorm").Device(tf::DEVICE_CPU).TypeConstraint<T>("T"),             \
      ClipByGlobalNormOp<T>)
REGISTER_KERNELS(float);
REGISTER_KERNELS(double);
#undef REGISTER_KERNELS

}  // namespace
}  // namespace monolith::ops
