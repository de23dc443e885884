// Reshapes many tensors of mixed types in one op, without copying any of them.
#include <cstdint>
#include <limits>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "ops/system/parallel.h"
#include "ops/system/tensor_checks.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/partial_tensor_shape.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/framework/tensor.h"

namespace monolith::ops {
namespace {

namespace tf = tensorflow;

// A shape may leave one dimension open; two could not be told apart.
absl::Status CheckTarget(int input, const tf::PartialTensorShape& target) {
  if (target.unknown_rank()) {
    return absl::InvalidArgumentError(absl::StrCat("The shape for input ", input,
                                                   " has no rank; give its dimensions, at most "
                                                   "one of them unknown."));
  }
  TF_RETURN_IF_ERROR(CheckKnownDims("shapes", target));
  int unknown = 0;
  for (const auto size : target.dim_sizes()) unknown += size < 0;
  if (unknown > 1) {
    return absl::InvalidArgumentError(absl::StrCat("The shape for input ", input,
                                                   " may have at most one unknown dimension, got ",
                                                   target.DebugString(), "."));
  }
  return absl::OkStatus();
}

// Fills in the open dimension of `target`, which passed CheckTarget, for `elements` elements.
absl::Status Resolve(int input, const tf::PartialTensorShape& target, std::int64_t elements,
                     tf::TensorShape* shape) {
  std::vector<std::int64_t> sizes(target.dims());
  int unknown = -1;
  std::int64_t known_product = 1;
  bool fits = true;
  for (int d = 0; d < target.dims(); ++d) {
    sizes[d] = target.dim_size(d);
    if (sizes[d] < 0) {
      unknown = d;
    } else {
      fits &= !__builtin_mul_overflow(known_product, sizes[d], &known_product);
    }
  }
  if (fits && unknown >= 0) {
    // With a dimension of 0 every value would fit the open one, so none can be inferred.
    fits = known_product > 0 && elements % known_product == 0;
    if (fits) sizes[unknown] = elements / known_product;
  } else {
    fits = fits && known_product == elements;
  }
  if (!fits) {
    return absl::InvalidArgumentError(absl::StrCat("Input ", input, " has ", elements,
                                                   " elements, which do not fit the shape ",
                                                   target.DebugString(), "."));
  }
  return tf::TensorShape::BuildTensorShape(sizes, shape);
}

absl::Status InferReshapedShapes(tf::shape_inference::InferenceContext* c) {
  std::vector<tf::PartialTensorShape> targets;
  TF_RETURN_IF_ERROR(c->GetAttr("shapes", &targets));
  const int n = c->num_inputs();
  if (static_cast<int>(targets.size()) != n) {
    return absl::InvalidArgumentError(absl::StrCat("There must be one shape per input, got ",
                                                   targets.size(), " shapes for ", n, " inputs."));
  }
  for (int i = 0; i < n; ++i) {
    TF_RETURN_IF_ERROR(CheckTarget(i, targets[i]));
    tf::shape_inference::ShapeHandle output;
    if (c->FullyDefined(c->input(i))) {
      tf::TensorShape shape;
      TF_RETURN_IF_ERROR(Resolve(i, targets[i], c->Value(c->NumElements(c->input(i))), &shape));
      TF_RETURN_IF_ERROR(c->MakeShapeFromTensorShape(shape, &output));
    } else {
      TF_RETURN_IF_ERROR(c->MakeShapeFromPartialTensorShape(targets[i], &output));
    }
    c->set_output(i, output);
  }
  c->set_output(n, c->Vector(n));
  return absl::OkStatus();
}

REGISTER_OP("MonolithStaticReshapeN")
    .Input("inputs: T")
    .Output("outputs: T")
    .Output("sizes: int32")
    .Attr("T: list(type) >= 0")
    .Attr("shapes: list(shape) >= 0")
    .Attr("enable_parallelism: bool = true")
    .SetShapeFn(InferReshapedShapes)
    .Doc(R"doc(
Reshapes each input to its own shape.

An output shares the memory of its input. A shape may have one unknown dimension, which is inferred.

outputs: The reshaped tensors, of the same types.
sizes: The number of elements of each output.
shapes: One shape per input.
enable_parallelism: Whether many inputs may be spread over the intra-op threads.
)doc");

class StaticReshapeNOp : public tf::OpKernel {
 public:
  explicit StaticReshapeNOp(tf::OpKernelConstruction* ctx) : tf::OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("shapes", &targets_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("enable_parallelism", &enable_parallelism_));
    OP_REQUIRES(ctx, static_cast<int>(targets_.size()) == ctx->num_inputs(),
                absl::InvalidArgumentError(absl::StrCat("There must be one shape per input, got ",
                                                        targets_.size(), " shapes for ",
                                                        ctx->num_inputs(), " inputs.")));
    for (int i = 0; i < ctx->num_inputs(); ++i) {
      OP_REQUIRES_OK(ctx, CheckTarget(i, targets_[i]));
    }
  }

  void Compute(tf::OpKernelContext* ctx) override {
    const int n = ctx->num_inputs();
    tf::Tensor* sizes = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(n, tf::TensorShape({n}), &sizes));
    auto sizes_flat = sizes->flat<std::int32_t>();

    std::vector<absl::Status> statuses(n);
    std::vector<tf::Tensor> outputs(n);
    const auto reshape = [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        statuses[i] = Reshape(i, ctx->input(i), &outputs[i], &sizes_flat(i));
      }
    };
    // No data moves: it takes hundreds of inputs until a second thread is worth waking up.
    constexpr std::int64_t kCyclesPerInput = 300;
    if (enable_parallelism_) {
      ParallelFor(ctx, n, kCyclesPerInput, reshape);
    } else {
      reshape(0, n);
    }
    for (int i = 0; i < n; ++i) {
      OP_REQUIRES_OK(ctx, statuses[i]);
      ctx->set_output(i, outputs[i]);
    }
  }

 private:
  absl::Status Reshape(int i, const tf::Tensor& input, tf::Tensor* output,
                       std::int32_t* size) const {
    const std::int64_t elements = input.NumElements();
    if (elements > std::numeric_limits<std::int32_t>::max()) {
      return absl::InvalidArgumentError(
          absl::StrCat("Input ", i, " has ", elements, " elements, more than the ",
                       std::numeric_limits<std::int32_t>::max(), " that `sizes` can hold."));
    }
    tf::TensorShape shape;
    TF_RETURN_IF_ERROR(Resolve(i, targets_[i], elements, &shape));
    if (!output->CopyFrom(input, shape)) {
      return absl::InternalError(absl::StrCat("Input ", i, " could not be reshaped."));
    }
    *size = static_cast<std::int32_t>(elements);
    return absl::OkStatus();
  }

  std::vector<tf::PartialTensorShape> targets_;
  bool enable_parallelism_ = true;
};

REGISTER_KERNEL_BUILDER(Name("MonolithStaticReshapeN").Device(tf::DEVICE_CPU), StaticReshapeNOp);

}  // namespace
}  // namespace monolith::ops
