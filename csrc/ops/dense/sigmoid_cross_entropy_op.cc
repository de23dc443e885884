// The cross entropy of binary labels in one op, and its gradient in another.
//
// TensorFlow makes it of two dozen ops; for the few hundred logits of a training step, to call an
// op costs more than its arithmetic.
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace monolith::ops {
namespace {

namespace tf = tensorflow;
namespace shapes = tensorflow::shape_inference;

absl::Status AllOfOneShape(shapes::InferenceContext* c) {
  shapes::ShapeHandle shape = c->input(0);
  for (int i = 1; i < c->num_inputs(); ++i) {
    TF_RETURN_IF_ERROR(c->Merge(shape, c->input(i), &shape));
  }
  c->set_output(0, shape);
  return absl::OkStatus();
}

REGISTER_OP("MonolithSigmoidCrossEntropy")
    .Input("logits: T")
    .Input("labels: T")
    .Output("losses: T")
    .Attr("T: {half, bfloat16, float, double}")
    .SetShapeFn(AllOfOneShape)
    .Doc(R"doc(
Returns -labels * log(p) - (1 - labels) * log(1 - p) for p = sigmoid(logits), for any logits.

logits: Of any shape.
labels: Of the same shape, between 0 and 1.
)doc");

REGISTER_OP("MonolithSigmoidCrossEntropyGradient")
    .Input("logits: T")
    .Input("labels: T")
    .Input("grad: T")
    .Output("logits_grad: T")
    .Attr("T: {half, bfloat16, float, double}")
    .SetShapeFn(AllOfOneShape)
    .Doc(R"doc(
Returns grad * (sigmoid(logits) - labels): the gradient by the logits from that by the losses.
)doc");

// With e = exp(-|x|), which never overflows, nothing is lost to a difference of numbers near 1.
template <typename T>
T Loss(T x, T label) {
  return std::max(x, T{0}) - x * label + std::log1p(std::exp(-std::abs(x)));
}

template <typename T>
T Slope(T x, T label) {
  const T e = std::exp(-std::abs(x));
  const T smaller = e / (T{1} + e);  // Of p and 1 - p.
  return x >= T{0} ? (T{1} - label) - smaller : smaller - label;
}

// Checks that all inputs have the shape of the logits, and allocates the output like them.
absl::Status Prepare(tf::OpKernelContext* ctx, tf::Tensor** output) {
  const tf::TensorShape& shape = ctx->input(0).shape();
  for (int i = 1; i < ctx->num_inputs(); ++i) {
    if (ctx->input(i).shape() != shape) {
      return absl::InvalidArgumentError(absl::StrCat("Logits and labels must have one shape, got ",
                                                     shape.DebugString(), " and ",
                                                     ctx->input(i).shape().DebugString()));
    }
  }
  return ctx->allocate_output(0, shape, output);
}

// Computes in `Wide`, which has at least the digits of a float.
template <typename T, typename Wide, bool kIsGradient>
class SigmoidCrossEntropyOp final : public tf::OpKernel {
 public:
  using tf::OpKernel::OpKernel;

  void Compute(tf::OpKernelContext* ctx) override {
    tf::Tensor* output = nullptr;
    OP_REQUIRES_OK(ctx, Prepare(ctx, &output));
    const auto logits = ctx->input(0).flat<T>(), labels = ctx->input(1).flat<T>();
    auto out = output->flat<T>();
    const T* grads = kIsGradient ? ctx->input(2).flat<T>().data() : nullptr;
    for (std::int64_t i = 0; i < out.size(); ++i) {
      const auto x = static_cast<Wide>(logits(i)), label = static_cast<Wide>(labels(i));
      if constexpr (kIsGradient) {
        const auto grad = static_cast<Wide>(grads[i]);
        out(i) = static_cast<T>(grad * Slope(x, label));
      } else {
        out(i) = static_cast<T>(Loss(x, label));
      }
    }
  }
};

#define REGISTER_FOR(T, Wide)                                                                    \
  REGISTER_KERNEL_BUILDER(                                                                       \
      Name("MonolithSigmoidCrossEntropy").Device(tf::DEVICE_CPU).TypeConstraint<T>("T"),         \
      SigmoidCrossEntropyOp<T, Wide, false>);                                                    \
  REGISTER_KERNEL_BUILDER(                                                                       \
      Name("MonolithSigmoidCrossEntropyGradient").Device(tf::DEVICE_CPU).TypeConstraint<T>("T"), \
      SigmoidCrossEntropyOp<T, Wide, true>)
REGISTER_FOR(Eigen::half, float);
REGISTER_FOR(tf::bfloat16, float);
REGISTER_FOR(float, float);
REGISTER_FOR(double, double);
#undef REGISTER_FOR

}  // namespace
}  // namespace monolith::ops
