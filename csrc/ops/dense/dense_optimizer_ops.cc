// Training ops of the dense optimizers, on resource variables.
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/dense/dense_optimizer.h"
#include "ops/dense/variable_update.h"
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

// The attribute `use_locking` is there for callers of TensorFlow's training ops and changes
// nothing, as in those: a dense update of a resource variable always locks.

constexpr int kSettings = 5;  // Scalars between the variables and the gradient.

// The variables must agree with the gradient as far as shapes are known.
absl::Status InferUpdateShapes(InferenceContext* c, int variables) {
  ShapeHandle merged = c->input(variables + kSettings);
  for (int i = 0; i < variables; ++i) {
    const auto* handle = c->input_handle_shapes_and_types(i);
    if (handle == nullptr || handle->empty()) continue;
    TF_RETURN_IF_ERROR(c->Merge(merged, (*handle)[0].shape, &merged));
  }
  ShapeHandle unused;
  for (int i = 0; i < kSettings; ++i) {
    TF_RETURN_IF_ERROR(c->WithRank(c->input(variables + i), 0, &unused));
  }
  return absl::OkStatus();
}

REGISTER_OP("MonolithResourceApplyAdamom")
    .Input("var: resource")
    .Input("m: resource")
    .Input("v: resource")
    .Input("c: resource")
    .Input("learning_rate: T")
    .Input("ada_decay: T")
    .Input("mom_decay: T")
    .Input("epsilon: T")
    .Input("weight_decay: T")
    .Input("grad: T")
    .Attr("T: {float, double}")
    .Attr("use_locking: bool = false")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) { return InferUpdateShapes(c, 4); })
    .Doc(R"doc(
Makes one Adamom step. With h = grad + weight_decay * var:

m = mom_decay * m + (1 - mom_decay) * h
v = ada_decay * v + h^2
c = ada_decay * c + 1
var -= learning_rate * m / sqrt(v / c + epsilon)
)doc");

REGISTER_OP("MonolithResourceApplyRmsprop")
    .Input("var: resource")
    .Input("m: resource")
    .Input("v: resource")
    .Input("learning_rate: T")
    .Input("beta1: T")
    .Input("beta2: T")
    .Input("epsilon: T")
    .Input("weight_decay: T")
    .Input("grad: T")
    .Attr("T: {float, double}")
    .Attr("use_locking: bool = false")
    .Attr("use_v2: bool = false")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) { return InferUpdateShapes(c, 3); })
    .Doc(R"doc(
Makes one RMSProp step with momentum. With h = grad + weight_decay * var:

v = beta2 * v + (1 - beta2) * h^2                         (use_v2: beta2 * v + h^2)
m = beta1 * m + learning_rate * h / sqrt(v + epsilon)     (use_v2: / (sqrt(v) + epsilon))
var -= m
)doc");

// What the two ops have in common: reading the settings, locking, checking, splitting the work.
template <typename T>
class ApplyOp : public tf::OpKernel {
 public:
  ApplyOp(tf::OpKernelConstruction* ctx, std::vector<const char*> variables)
      : tf::OpKernel(ctx), variables_(std::move(variables)) {}

  void Compute(tf::OpKernelContext* ctx) final {
    const int first_setting = static_cast<int>(variables_.size());
    T settings[kSettings];
    for (int i = 0; i < kSettings; ++i) {
      const tf::Tensor& setting = ctx->input(first_setting + i);
      OP_REQUIRES(ctx, tf::TensorShapeUtils::IsScalar(setting.shape()),
                  absl::InvalidArgumentError(absl::StrCat("Input ", first_setting + i,
                                                          " must be a scalar, got shape ",
                                                          setting.shape().DebugString(), ".")));
      settings[i] = setting.scalar<T>()();
    }
    const tf::Tensor& grad = ctx->input(first_setting + kSettings);

    WritableVariables<T> variables;
    OP_REQUIRES_OK(ctx, variables.Acquire(ctx, variables_));
    OP_REQUIRES(ctx, grad.shape() == variables.shape(),
                absl::InvalidArgumentError(
                    absl::StrCat("`grad` must have the shape ", variables.shape().DebugString(),
                                 " of `var`, got ", grad.shape().DebugString(), ".")));
    Apply(ctx, settings, grad.NumElements(), grad.flat<T>().data(), &variables);
  }

 protected:
  virtual void Apply(tf::OpKernelContext* ctx, const T* settings, std::int64_t n, const T* grad,
                     WritableVariables<T>* variables) const = 0;

  // A square root and one or two divisions, eight or four elements at a time.
  static constexpr std::int64_t kCyclesPerElement = 2;

 private:
  const std::vector<const char*> variables_;
};

template <typename T>
class ApplyAdamomOp final : public ApplyOp<T> {
 public:
  explicit ApplyAdamomOp(tf::OpKernelConstruction* ctx) : ApplyOp<T>(ctx, {"var", "m", "v", "c"}) {}

 private:
  void Apply(tf::OpKernelContext* ctx, const T* settings, std::int64_t n, const T* grad,
             WritableVariables<T>* variables) const override {
    const core::AdamomSettings<T> adamom = {settings[0], settings[1], settings[2], settings[3],
                                            settings[4]};
    T* var = variables->data(0);
    T* m = variables->data(1);
    T* v = variables->data(2);
    T* c = variables->data(3);
    ParallelFor(ctx, n, this->kCyclesPerElement, [=](std::int64_t begin, std::int64_t end) {
      core::ApplyAdamom(adamom, end - begin, grad + begin, var + begin, m + begin, v + begin,
                        c + begin);
    });
  }
};

template <typename T>
class ApplyRmspropOp final : public ApplyOp<T> {
 public:
  explicit ApplyRmspropOp(tf::OpKernelConstruction* ctx) : ApplyOp<T>(ctx, {"var", "m", "v"}) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("use_v2", &use_v2_));
  }

 private:
  void Apply(tf::OpKernelContext* ctx, const T* settings, std::int64_t n, const T* grad,
             WritableVariables<T>* variables) const override {
    const core::RmspropSettings<T> rmsprop = {settings[0], settings[1], settings[2], settings[3],
                                              settings[4]};
    T* var = variables->data(0);
    T* m = variables->data(1);
    T* v = variables->data(2);
    void (*step)(const core::RmspropSettings<T>&, std::size_t, const T*, T*, T*, T*) =
        core::ApplyRmsprop;
    if (use_v2_) step = core::ApplyRmspropV2;
    ParallelFor(ctx, n, this->kCyclesPerElement, [=](std::int64_t begin, std::int64_t end) {
      step(rmsprop, end - begin, grad + begin, var + begin, m + begin, v + begin);
    });
  }

  bool use_v2_ = false;
};

// CPU only. Without a GPU kernel TensorFlow places a variable that is free to go anywhere on the
// CPU; one that is pinned to a GPU is refused by the Python optimizers.
#define REGISTER_KERNELS(T)                                                               \
  REGISTER_KERNEL_BUILDER(                                                                \
      Name("MonolithResourceApplyAdamom").Device(tf::DEVICE_CPU).TypeConstraint<T>("T"),  \
      ApplyAdamomOp<T>);                                                                  \
  REGISTER_KERNEL_BUILDER(                                                                \
      Name("MonolithResourceApplyRmsprop").Device(tf::DEVICE_CPU).TypeConstraint<T>("T"), \
      ApplyRmspropOp<T>)
REGISTER_KERNELS(float);
REGISTER_KERNELS(double);
#undef REGISTER_KERNELS

}  // namespace
}  // namespace monolith::ops
