// A fully connected layer in one op, and its gradients in another.
//
// TensorFlow's own ops read and write the activations once for the product, once for the bias and
// once for ReLU.
#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "core/matmul.h"
#include "ops/parallel.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace monolith::ops {
namespace {

namespace tf = tensorflow;
namespace shapes = tensorflow::shape_inference;

REGISTER_OP("MonolithDense")
    .Input("inputs: float")
    .Input("kernel: float")
    .Input("bias: float")
    .Output("outputs: float")
    .Attr("activation: {'linear', 'relu'} = 'linear'")
    .SetShapeFn([](shapes::InferenceContext* c) {
      shapes::ShapeHandle inputs, kernel, bias;
      shapes::DimensionHandle unused;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 2, &inputs));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 2, &kernel));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(2), 1, &bias));
      TF_RETURN_IF_ERROR(c->Merge(c->Dim(inputs, 1), c->Dim(kernel, 0), &unused));
      c->set_output(0, c->Matrix(c->Dim(inputs, 0), c->Dim(kernel, 1)));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Returns activation(inputs x kernel + bias), for inputs [batch, dim] and a kernel [dim, units].

bias: [units], or empty for none.
)doc");

REGISTER_OP("MonolithDenseGradient")
    .Input("inputs: float")
    .Input("kernel: float")
    .Input("outputs: float")
    .Input("grad: float")
    .Output("inputs_grad: float")
    .Output("kernel_grad: float")
    .Output("bias_grad: float")
    .Attr("activation: {'linear', 'relu'} = 'linear'")
    .SetShapeFn([](shapes::InferenceContext* c) {
      shapes::ShapeHandle kernel;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 2, &kernel));
      c->set_output(0, c->input(0));
      c->set_output(1, kernel);
      c->set_output(2, c->Vector(c->Dim(kernel, 1)));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Returns the gradients by the inputs, kernel and bias of MonolithDense, from that of its outputs.
)doc");

// Products below this many multiplications are done before another thread is awake.
constexpr std::int64_t kSmallProduct = 200'000;
constexpr std::int64_t kPiecesPerThread = 3;

// out = a x b, for b [depth, columns], its rows split between threads.
absl::Status MultiplyInParallel(tf::OpKernelContext* ctx, std::int64_t rows, std::int64_t columns,
                                std::int64_t depth, const core::MatrixView& a,
                                const core::MatrixView& b, const core::Epilogue& epilogue,
                                float* out) {
  tf::Tensor storage;
  TF_RETURN_IF_ERROR(ctx->allocate_temp(
      tf::DT_FLOAT,
      tf::TensorShape({static_cast<std::int64_t>(core::PackedFloats(depth, columns))}), &storage));
  const core::PackedMatrix packed(b, depth, columns, storage.flat<float>().data());
  const std::int64_t threads = ctx->device()->tensorflow_cpu_worker_threads()->num_threads;
  if (threads == 1 || rows * columns * depth < kSmallProduct) {
    core::Multiply(rows, a, packed, epilogue, out);
    return absl::OkStatus();
  }
  const std::int64_t per_piece = (rows - 1) / (threads * kPiecesPerThread) + 1;
  const std::int64_t pieces = (rows - 1) / per_piece + 1;
  ForEachPiece(ctx, pieces, [&](std::int64_t piece) {
    const std::int64_t first = piece * per_piece;
    core::Multiply(std::min(per_piece, rows - first), a.FromRow(first), packed, epilogue,
                   out + first * columns);
  });
  return absl::OkStatus();
}

// The sizes of a layer, after its tensors were checked.
struct Sizes {
  std::int64_t batch, dim, units;
};

absl::Status CheckMatrix(const char* name, const tf::Tensor& tensor, std::int64_t rows,
                         std::int64_t columns) {
  if (tensor.dims() == 2 && tensor.dim_size(0) == rows && tensor.dim_size(1) == columns) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("`", name, "` must have the shape [", rows, ",",
                                                 columns, "], got ", tensor.shape().DebugString()));
}

absl::Status GetSizes(const tf::Tensor& inputs, const tf::Tensor& kernel, Sizes* sizes) {
  if (inputs.dims() != 2 || kernel.dims() != 2 || inputs.dim_size(1) != kernel.dim_size(0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("A dense layer needs `inputs` [batch, dim] and a `kernel` [dim, units], got ",
                     inputs.shape().DebugString(), " and ", kernel.shape().DebugString()));
  }
  *sizes = {inputs.dim_size(0), inputs.dim_size(1), kernel.dim_size(1)};
  return absl::OkStatus();
}

class LayerOp : public tf::OpKernel {
 public:
  explicit LayerOp(tf::OpKernelConstruction* ctx) : tf::OpKernel(ctx) {
    std::string activation;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("activation", &activation));
    relu_ = activation == "relu";
  }

 protected:
  bool relu_ = false;
};

class DenseOp final : public LayerOp {
 public:
  using LayerOp::LayerOp;

  void Compute(tf::OpKernelContext* ctx) override {
    const tf::Tensor& inputs = ctx->input(0);
    const tf::Tensor& kernel = ctx->input(1);
    const tf::Tensor& bias = ctx->input(2);
    Sizes sizes;
    OP_REQUIRES_OK(ctx, GetSizes(inputs, kernel, &sizes));
    const bool has_bias = bias.NumElements() > 0;
    OP_REQUIRES(ctx, !has_bias || bias.NumElements() == sizes.units,
                absl::InvalidArgumentError(absl::StrCat("`bias` must have ", sizes.units,
                                                        " elements or none, got shape ",
                                                        bias.shape().DebugString())));
    tf::Tensor* outputs = nullptr;
    OP_REQUIRES_OK(ctx,
                   ctx->allocate_output(0, tf::TensorShape({sizes.batch, sizes.units}), &outputs));
    const core::Epilogue epilogue = {has_bias ? bias.flat<float>().data() : nullptr, relu_};
    OP_REQUIRES_OK(ctx, MultiplyInParallel(ctx, sizes.batch, sizes.units, sizes.dim,
                                           core::RowMajor(inputs.flat<float>().data(), sizes.dim),
                                           core::RowMajor(kernel.flat<float>().data(), sizes.units),
                                           epilogue, outputs->flat<float>().data()));
  }
};

class DenseGradientOp final : public LayerOp {
 public:
  using LayerOp::LayerOp;

  void Compute(tf::OpKernelContext* ctx) override {
    const tf::Tensor& inputs = ctx->input(0);
    const tf::Tensor& kernel = ctx->input(1);
    const tf::Tensor& outputs = ctx->input(2);
    tf::Tensor grad = ctx->input(3);
    Sizes sizes;
    OP_REQUIRES_OK(ctx, GetSizes(inputs, kernel, &sizes));
    OP_REQUIRES_OK(ctx, CheckMatrix("outputs", outputs, sizes.batch, sizes.units));
    OP_REQUIRES_OK(ctx, CheckMatrix("grad", grad, sizes.batch, sizes.units));
    tf::Tensor *inputs_grad = nullptr, *kernel_grad = nullptr, *bias_grad = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, inputs.shape(), &inputs_grad));
    OP_REQUIRES_OK(ctx, ctx->allocate_output(1, kernel.shape(), &kernel_grad));
    OP_REQUIRES_OK(ctx, ctx->allocate_output(2, tf::TensorShape({sizes.units}), &bias_grad));
    if (relu_) {
      tf::Tensor masked;
      OP_REQUIRES_OK(ctx, ctx->allocate_temp(tf::DT_FLOAT, grad.shape(), &masked));
      core::ReluGradient(grad.NumElements(), outputs.flat<float>().data(),
                         grad.flat<float>().data(), masked.flat<float>().data());
      grad = masked;
    }
    const float* grads = grad.flat<float>().data();
    core::SumRows(sizes.batch, sizes.units, grads, bias_grad->flat<float>().data());
    OP_REQUIRES_OK(
        ctx, MultiplyInParallel(ctx, sizes.batch, sizes.dim, sizes.units,
                                core::RowMajor(grads, sizes.units),
                                core::Transposed(kernel.flat<float>().data(), sizes.units), {},
                                inputs_grad->flat<float>().data()));
    OP_REQUIRES_OK(ctx, MultiplyInParallel(ctx, sizes.dim, sizes.units, sizes.batch,
                                           core::Transposed(inputs.flat<float>().data(), sizes.dim),
                                           core::RowMajor(grads, sizes.units), {},
                                           kernel_grad->flat<float>().data()));
  }
};

REGISTER_KERNEL_BUILDER(Name("MonolithDense").Device(tf::DEVICE_CPU), DenseOp);
REGISTER_KERNEL_BUILDER(Name("MonolithDenseGradient").Device(tf::DEVICE_CPU), DenseGradientOp);

}  // namespace
}  // namespace monolith::ops
