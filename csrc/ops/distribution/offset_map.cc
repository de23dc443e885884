// Rows of distinct ids copied to where all occurrences of each stand, and gradients summed back.
//
// See MonolithUniqueKeyWithValueAndOffset for the offset map. Each server has some of the distinct
// ids; `pos` says which, as positions among all of them, and `pos_split` which of them belong to
// which table.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "ops/distribution/rows.h"
#include "ops/distribution/shared_tensor.h"
#include "ops/system/handles.h"
#include "ops/system/kept_outputs.h"
#include "ops/system/parallel.h"
#include "ops/system/sizes.h"
#include "ops/system/tensor_checks.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/partial_tensor_shape.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace monolith::ops {
namespace {

namespace tf = tensorflow;
using tf::shape_inference::InferenceContext;
using tf::shape_inference::ShapeHandle;

absl::Status CheckPosShapes(InferenceContext* c) {
  std::vector<std::int64_t> dims;
  TF_RETURN_IF_ERROR(c->GetAttr("dims", &dims));
  ShapeHandle unused;
  for (int i = 0; i < 5; ++i) TF_RETURN_IF_ERROR(c->WithRank(c->input(i), 1, &unused));
  ShapeHandle pos_split;
  return c->Merge(c->input(1), c->Vector(static_cast<std::int64_t>(dims.size()) + 1), &pos_split);
}

REGISTER_OP("MonolithFillWithOffsetMap")
    .Input("pos: int64")
    .Input("pos_split: int64")
    .Input("value: float")
    .Input("value_offset_map: int64")
    .Input("value_offset_map_split: int64")
    .Input("value_buffer: resource")
    .Output("out_value_buffer: resource")
    .Attr("dims: list(int)")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      TF_RETURN_IF_ERROR(CheckPosShapes(c));
      c->set_output(0, c->Scalar());
      return absl::OkStatus();
    })
    .Doc(R"doc(
Copies the row of each distinct id in `pos` to all its offsets in the buffer.

value: The rows, one after the other.
)doc");

REGISTER_OP("MonolithFillWithOffsetMapGradient")
    .Input("pos: int64")
    .Input("pos_split: int64")
    .Input("grad: float")
    .Input("value_offset_map: int64")
    .Input("value_offset_map_split: int64")
    .Output("backprop_grad: float")
    .Attr("dims: list(int)")
    .SetShapeFn([](InferenceContext* c) {
      TF_RETURN_IF_ERROR(CheckPosShapes(c));
      c->set_output(0, c->UnknownShapeOfRank(1));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Sums the gradients at all offsets of each distinct id in `pos`.

grad: Laid out as the buffer of MonolithFillWithOffsetMap.
backprop_grad: Laid out as its value.
)doc");

REGISTER_OP("MonolithFinalizeSharedTensor")
    .Input("handle: num_tensors * resource")
    .Output("t: dtype")
    .Attr("shape: shape")
    .Attr("dtype: type")
    .Attr("num_tensors: int >= 1")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      tf::PartialTensorShape shape;
      TF_RETURN_IF_ERROR(c->GetAttr("shape", &shape));
      TF_RETURN_IF_ERROR(CheckKnownDims("shape", shape));
      ShapeHandle output;
      TF_RETURN_IF_ERROR(c->MakeShapeFromPartialTensorShape(shape, &output));
      c->set_output(0, output);
      return absl::OkStatus();
    })
    .Doc(R"doc(
Takes a shared tensor out of its handle once all have written to it; the handle is useless then.

handle: The same handle several times: as it came from each op that has written.
)doc");

// Shared by the copy and its gradient: walks over the distinct ids of `pos`.
class OffsetMapOp : public tf::OpKernel {
 public:
  explicit OffsetMapOp(tf::OpKernelConstruction* ctx) : tf::OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("dims", &dims_));
    for (const std::int64_t dim : dims_) {
      OP_REQUIRES(
          ctx, dim > 0,
          absl::InvalidArgumentError(absl::StrCat("`dims` must be positive, got ", dim, ".")));
    }
  }

 protected:
  // Checks `pos_split`; `first_value[row]` becomes where the rows of that table begin.
  absl::Status CutIntoRows(tf::OpKernelContext* ctx, std::vector<std::int64_t>* first_value) const {
    const auto pos_split = Flat<std::int64_t>(ctx->input(1));
    if (pos_split.size() != dims_.size() + 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("`pos` must have ", dims_.size(), " rows, one for each of `dims`, got ",
                       static_cast<std::int64_t>(pos_split.size()) - 1, "."));
    }
    TF_RETURN_IF_ERROR(CheckRowSplits(pos_split, "pos_split", ctx->input(0).NumElements()));
    first_value->assign(1, 0);
    for (std::size_t row = 0; row < dims_.size(); ++row) {
      first_value->push_back(SizeSum(first_value->back(),
                                     SizeProduct(pos_split[row + 1] - pos_split[row], dims_[row])));
    }
    return CheckSize("dims", first_value->back(),
                     ctx->input(0).NumElements() + ctx->input(2).NumElements());
  }

  // Calls `work(value, dim, offsets)` for each of `pos`: where its row begins among the values, and
  // its places in a buffer of `buffer_size` floats, all of which are inside of it.
  template <typename Work>
  absl::Status ForEachPosition(tf::OpKernelContext* ctx,
                               const std::vector<std::int64_t>& first_value,
                               std::int64_t buffer_size, const Work& work) const {
    const auto pos = Flat<std::int64_t>(ctx->input(0));
    const auto pos_split = Flat<std::int64_t>(ctx->input(1));
    const auto offsets = Flat<std::int64_t>(ctx->input(3));
    const auto splits = Flat<std::int64_t>(ctx->input(4));
    const auto num_pos = static_cast<std::int64_t>(pos.size());
    const auto num_ids = static_cast<std::int64_t>(splits.size()) - 1;
    const auto num_offsets = static_cast<std::int64_t>(offsets.size());
    if (num_pos == 0) return absl::OkStatus();

    constexpr std::int64_t kNone = -1;
    std::atomic<std::int64_t> bad{kNone};  // An element of `pos` that leads out of bounds.
    const std::int64_t cycles = 20 + first_value.back() / num_pos;
    ParallelFor(ctx, num_pos, cycles, [&](std::int64_t begin, std::int64_t end) {
      std::size_t row =
          std::upper_bound(pos_split.begin(), pos_split.end(), begin) - pos_split.begin() - 1;
      for (std::int64_t i = begin; i < end; ++i) {
        while (i >= pos_split[row + 1]) ++row;
        const std::int64_t dim = dims_[row];
        const std::int64_t id = pos[i];
        if (id < 0 || id >= num_ids || splits[id] < 0 || splits[id] > splits[id + 1] ||
            splits[id + 1] > num_offsets) {
          bad = i;
          return;
        }
        const auto places = offsets.subspan(splits[id], splits[id + 1] - splits[id]);
        for (const std::int64_t place : places) {
          if (place < 0 || place > buffer_size - dim) {
            bad = i;
            return;
          }
        }
        work(first_value[row] + (i - pos_split[row]) * dim, dim, places);
      }
    });
    if (bad == kNone) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        "Element ", bad.load(), " of `pos`, ", pos[bad], ", has no place in the offset map of ",
        num_ids, " ids and ", num_offsets, " offsets, or its row is not inside of the ",
        buffer_size, " floats of the buffer; pass what the op that made unique keys returned."));
  }

  std::vector<std::int64_t> dims_;
};

class FillWithOffsetMapOp final : public OffsetMapOp {
 public:
  using OffsetMapOp::OffsetMapOp;

  void Compute(tf::OpKernelContext* ctx) override {
    std::vector<std::int64_t> first_value;
    OP_REQUIRES_OK(ctx, CutIntoRows(ctx, &first_value));
    const tf::Tensor& value = ctx->input(2);
    OP_REQUIRES(ctx, value.NumElements() == first_value.back(),
                absl::InvalidArgumentError(absl::StrCat(
                    "Value size doesn't match expected size. expected: ", first_value.back(),
                    ", actual: ", value.NumElements(),
                    ". \nPos split: ", absl::StrJoin(Flat<std::int64_t>(ctx->input(1)), ","))));
    tf::core::RefCountPtr<SharedTensor> shared;
    OP_REQUIRES_OK(ctx, FindResource(ctx, 5, &shared));
    tf::Tensor buffer;
    OP_REQUIRES_OK(ctx, shared->Get(&buffer));
    const float* from = value.flat<float>().data();
    float* to = buffer.flat<float>().data();
    OP_REQUIRES_OK(ctx, ForEachPosition(ctx, first_value, buffer.NumElements(),
                                        [&](std::int64_t row, std::int64_t dim,
                                            absl::Span<const std::int64_t> places) {
                                          for (const std::int64_t place : places) {
                                            std::copy_n(from + row, dim, to + place);
                                          }
                                        }));
    ctx->set_output(0, ctx->input(5));
  }
};

class FillWithOffsetMapGradientOp final : public OffsetMapOp {
 public:
  using OffsetMapOp::OffsetMapOp;

  void Compute(tf::OpKernelContext* ctx) override {
    std::vector<std::int64_t> first_value;
    OP_REQUIRES_OK(ctx, CutIntoRows(ctx, &first_value));
    const tf::Tensor& grad = ctx->input(2);
    float* sums = nullptr;
    tf::TensorShape shape;
    OP_REQUIRES_OK(ctx, MakeShape({first_value.back()}, &shape));
    OP_REQUIRES_OK(ctx, outputs_.Allocate(ctx, 0, shape, &sums));
    const float* from = grad.flat<float>().data();
    OP_REQUIRES_OK(ctx, ForEachPosition(ctx, first_value, grad.NumElements(),
                                        [&](std::int64_t row, std::int64_t dim,
                                            absl::Span<const std::int64_t> places) {
                                          AddUp(from, dim, places, sums + row);
                                        }));
  }

 private:
  static void AddUp(const float* grads, std::int64_t dim, absl::Span<const std::int64_t> places,
                    float* sum) {
    if (places.empty()) {
      std::fill_n(sum, dim, 0.0F);
      return;
    }
    std::copy_n(grads + places.front(), dim, sum);
    for (const std::int64_t place : places.subspan(1)) {
      AddRow(grads + place, dim, sum);
    }
  }

  KeptOutputs outputs_;
};

class FinalizeSharedTensorOp final : public tf::OpKernel {
 public:
  explicit FinalizeSharedTensorOp(tf::OpKernelConstruction* ctx) : tf::OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("shape", &shape_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("dtype", &dtype_));
  }

  void Compute(tf::OpKernelContext* ctx) override {
    tf::core::RefCountPtr<SharedTensor> shared;
    for (int i = 0; i < ctx->num_inputs(); ++i) {
      tf::core::RefCountPtr<SharedTensor> found;
      OP_REQUIRES_OK(ctx, FindResource(ctx, i, &found));
      OP_REQUIRES(ctx, i == 0 || found.get() == shared.get(),
                  absl::InvalidArgumentError(
                      absl::StrCat("All handles must be of one shared tensor, but handle ", i,
                                   " is of another one than handle 0.")));
      shared = std::move(found);
    }
    tf::Tensor tensor;
    OP_REQUIRES_OK(ctx, shared->Get(&tensor));
    OP_REQUIRES(ctx, tensor.dtype() == dtype_ && shape_.IsCompatibleWith(tensor.shape()),
                absl::InvalidArgumentError(absl::StrCat(
                    "The shared tensor is of type ", tf::DataTypeString(tensor.dtype()),
                    " and shape ", tensor.shape().DebugString(), ", but it was asked for as ",
                    tf::DataTypeString(dtype_), " of shape ", shape_.DebugString(), ".")));
    tensor = tf::Tensor();
    OP_REQUIRES_OK(ctx, shared->Take(&tensor));
    ctx->set_output(0, tensor);
  }

 private:
  tf::PartialTensorShape shape_;
  tf::DataType dtype_ = tf::DT_INVALID;
};

REGISTER_KERNEL_BUILDER(Name("MonolithFillWithOffsetMap").Device(tf::DEVICE_CPU),
                        FillWithOffsetMapOp);
REGISTER_KERNEL_BUILDER(Name("MonolithFillWithOffsetMapGradient").Device(tf::DEVICE_CPU),
                        FillWithOffsetMapGradientOp);
REGISTER_KERNEL_BUILDER(Name("MonolithFinalizeSharedTensor").Device(tf::DEVICE_CPU),
                        FinalizeSharedTensorOp);

}  // namespace
}  // namespace monolith::ops
