// Ids, rows and ragged ids divided by the server each belongs to.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "ops/system/parallel.h"
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

REGISTER_OP("MonolithSplitByIndices")
    .Input("indices: int64")
    .Input("input: T")
    .Output("splitted: num_splits * T")
    .Attr("num_splits: int >= 1")
    .Attr("T: {float, int64}")
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle indices;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 1, &indices));
      ShapeHandle input;
      TF_RETURN_IF_ERROR(c->WithRankAtLeast(c->input(1), 1, &input));
      ShapeHandle split;
      if (c->RankKnown(input)) {
        DimensionHandle unused;
        TF_RETURN_IF_ERROR(c->Merge(c->Dim(indices, 0), c->Dim(input, 0), &unused));
        TF_RETURN_IF_ERROR(c->ReplaceDim(input, 0, c->UnknownDim(), &split));
      } else {
        split = c->UnknownShape();
      }
      for (int i = 0; i < c->num_outputs(); ++i) c->set_output(i, split);
      return absl::OkStatus();
    })
    .Doc(R"doc(
Divides the rows of a tensor; the order within a split is that of the input.

indices: For each row its split, within [0, num_splits).
input: At least a vector.
)doc");

REGISTER_OP("MonolithSplitByIndicesGradient")
    .Input("indices: int64")
    .Input("input: T")
    .Input("grads: num_splits * T")
    .Output("input_grads: T")
    .Attr("num_splits: int >= 1")
    .Attr("T: {float, int64}")
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->input(1));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Puts the rows of the splits back to where MonolithSplitByIndices took them from.
)doc");

REGISTER_OP("MonolithRaggedSplitByIndices")
    .Input("indices: int64")
    .Input("num: int64")
    .Input("num_split: int64")
    .Output("splitted_nums: num_splits * int64")
    .Output("splitted_num_splits: num_splits * int64")
    .Output("splitted_pos: num_splits * int64")
    .Attr("num_splits: int >= 1")
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle unused;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 1, &unused));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 1, &unused));
      ShapeHandle row_splits;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(2), 1, &row_splits));
      const int n = c->num_outputs() / 3;
      for (int i = 0; i < n; ++i) {
        c->set_output(i, c->UnknownShapeOfRank(1));
        c->set_output(n + i, row_splits);
        c->set_output(2 * n + i, c->UnknownShapeOfRank(1));
      }
      return absl::OkStatus();
    })
    .Doc(R"doc(
Divides the values of a ragged tensor; every split keeps all rows.

splitted_pos: Where the values of each split stood among the values of the input.
)doc");

REGISTER_OP("MonolithNormalizeMergedSplit")
    .Input("row_split: int64")
    .Input("row_split_size: int32")
    .Output("normed_row_split: int64")
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle unused;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 1, &unused));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 1, &unused));
      c->set_output(0, c->UnknownShapeOfRank(1));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Makes the row splits of several ragged tensors, one after the other, those of all rows together.

row_split: Row splits of each tensor; each begins with 0.
row_split_size: How many elements of `row_split` belong to each tensor.
)doc");

// Counts how many of `indices` name each split.
absl::Status CountBySplit(absl::Span<const std::int64_t> indices, int num_splits,
                          std::vector<std::int64_t>* counts) {
  counts->assign(num_splits, 0);
  for (std::size_t i = 0; i < indices.size(); ++i) {
    if (indices[i] < 0 || indices[i] >= num_splits) {
      return BadIndex("indices", static_cast<std::int64_t>(i), indices[i], num_splits);
    }
    ++(*counts)[indices[i]];
  }
  return absl::OkStatus();
}

absl::Status CheckRows(const tf::Tensor& indices, const tf::Tensor& input) {
  TF_RETURN_IF_ERROR(CheckRank(indices, "indices", 1));
  if (input.dims() >= 1 && input.dim_size(0) == indices.NumElements()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("`input` must have a row for each of the ",
                                                 indices.NumElements(), " `indices`, got shape ",
                                                 input.shape().DebugString(), "."));
}

// Floats or ids in one row of `tensor`.
std::int64_t RowSize(const tf::Tensor& tensor) {
  std::int64_t size = 1;
  for (int d = 1; d < tensor.dims(); ++d) size = SizeProduct(size, tensor.dim_size(d));
  return size;
}

template <typename T>
class SplitByIndicesOp final : public tf::OpKernel {
 public:
  explicit SplitByIndicesOp(tf::OpKernelConstruction* ctx) : tf::OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("num_splits", &num_splits_));
  }

  void Compute(tf::OpKernelContext* ctx) override {
    const tf::Tensor& input = ctx->input(1);
    OP_REQUIRES_OK(ctx, CheckRows(ctx->input(0), input));
    const auto indices = Flat<std::int64_t>(ctx->input(0));
    std::vector<std::int64_t> counts;
    OP_REQUIRES_OK(ctx, CountBySplit(indices, num_splits_, &counts));

    std::vector<T*> next(num_splits_);
    for (int i = 0; i < num_splits_; ++i) {
      tf::TensorShape shape = input.shape();
      shape.set_dim(0, counts[i]);
      tf::Tensor* split = nullptr;
      OP_REQUIRES_OK(ctx, ctx->allocate_output(i, shape, &split));
      next[i] = split->flat<T>().data();
    }
    const std::int64_t row_size = RowSize(input);
    const T* row = input.flat<T>().data();
    for (const std::int64_t split : indices) {
      next[split] = std::copy_n(row, row_size, next[split]);
      row += row_size;
    }
  }

 private:
  int num_splits_ = 0;
};

template <typename T>
class SplitByIndicesGradientOp final : public tf::OpKernel {
 public:
  explicit SplitByIndicesGradientOp(tf::OpKernelConstruction* ctx) : tf::OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("num_splits", &num_splits_));
  }

  void Compute(tf::OpKernelContext* ctx) override {
    const tf::Tensor& input = ctx->input(1);
    OP_REQUIRES_OK(ctx, CheckRows(ctx->input(0), input));
    const auto indices = Flat<std::int64_t>(ctx->input(0));
    std::vector<std::int64_t> counts;
    OP_REQUIRES_OK(ctx, CountBySplit(indices, num_splits_, &counts));

    const std::int64_t row_size = RowSize(input);
    std::vector<const T*> next(num_splits_);
    for (int i = 0; i < num_splits_; ++i) {
      const tf::Tensor& grad = ctx->input(2 + i);
      OP_REQUIRES(ctx, grad.NumElements() == SizeProduct(counts[i], row_size),
                  absl::InvalidArgumentError(absl::StrCat(
                      "Gradient ", i, " of `grads` must have ", counts[i], " rows of ", row_size,
                      " elements, got shape ", grad.shape().DebugString(), ".")));
      next[i] = grad.flat<T>().data();
    }
    tf::Tensor* output = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, input.shape(), &output));
    T* row = output->flat<T>().data();
    for (const std::int64_t split : indices) {
      row = std::copy_n(next[split], row_size, row);
      next[split] += row_size;
    }
  }

 private:
  int num_splits_ = 0;
};

class RaggedSplitByIndicesOp final : public tf::OpKernel {
 public:
  explicit RaggedSplitByIndicesOp(tf::OpKernelConstruction* ctx) : tf::OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("num_splits", &num_splits_));
  }

  void Compute(tf::OpKernelContext* ctx) override {
    const auto indices = Flat<std::int64_t>(ctx->input(0));
    const auto values = Flat<std::int64_t>(ctx->input(1));
    const auto row_splits = Flat<std::int64_t>(ctx->input(2));
    OP_REQUIRES(ctx, values.size() == indices.size(),
                absl::InvalidArgumentError(
                    absl::StrCat("Ragged tensor values size must match indices size. Got ",
                                 values.size(), " v.s. ", indices.size())));
    OP_REQUIRES_OK(
        ctx, CheckRowSplits(row_splits, "num_split", static_cast<std::int64_t>(values.size())));
    std::vector<std::int64_t> counts;
    OP_REQUIRES_OK(ctx, CountBySplit(indices, num_splits_, &counts));

    std::vector<std::int64_t*> out_values(num_splits_);
    std::vector<std::int64_t*> out_row_splits(num_splits_);
    std::vector<std::int64_t*> out_positions(num_splits_);
    const auto num_row_splits = static_cast<std::int64_t>(row_splits.size());
    for (int i = 0; i < num_splits_; ++i) {
      OP_REQUIRES_OK(ctx, Allocate(ctx, i, counts[i], &out_values[i]));
      OP_REQUIRES_OK(ctx, Allocate(ctx, num_splits_ + i, num_row_splits, &out_row_splits[i]));
      OP_REQUIRES_OK(ctx, Allocate(ctx, 2 * num_splits_ + i, counts[i], &out_positions[i]));
    }
    std::vector<std::int64_t> taken(num_splits_, 0);
    for (std::int64_t row = 0; row < num_row_splits; ++row) {
      for (int i = 0; i < num_splits_; ++i) out_row_splits[i][row] = taken[i];
      if (row + 1 == num_row_splits) break;
      for (std::int64_t p = row_splits[row]; p < row_splits[row + 1]; ++p) {
        const std::int64_t split = indices[p];
        out_values[split][taken[split]] = values[p];
        out_positions[split][taken[split]] = p;
        ++taken[split];
      }
    }
  }

 private:
  static absl::Status Allocate(tf::OpKernelContext* ctx, int output, std::int64_t size,
                               std::int64_t** data) {
    tf::Tensor* tensor = nullptr;
    TF_RETURN_IF_ERROR(ctx->allocate_output(output, tf::TensorShape({size}), &tensor));
    *data = tensor->flat<std::int64_t>().data();
    return absl::OkStatus();
  }

  int num_splits_ = 0;
};

class NormalizeMergedSplitOp final : public tf::OpKernel {
 public:
  using tf::OpKernel::OpKernel;

  void Compute(tf::OpKernelContext* ctx) override {
    const auto row_split = Flat<std::int64_t>(ctx->input(0));
    const auto sizes = Flat<std::int32_t>(ctx->input(1));
    std::int64_t given = 0;
    std::int64_t num_rows = 0;
    for (const std::int32_t size : sizes) {
      OP_REQUIRES(ctx, size >= 1,
                  absl::InvalidArgumentError(absl::StrCat(
                      "`row_split_size` must be positive, since row splits have at least the start "
                      "of the first row; got ",
                      size, ".")));
      given += size;
      num_rows += size - 1;
    }
    OP_REQUIRES(ctx, given == static_cast<std::int64_t>(row_split.size()),
                absl::InvalidArgumentError(absl::StrCat(
                    "`row_split` must have ", given, " elements, the sum of `row_split_size`, got ",
                    row_split.size(), ".")));
    tf::Tensor* output = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, tf::TensorShape({num_rows + 1}), &output));
    std::int64_t* normed = output->flat<std::int64_t>().data();
    *normed++ = 0;
    std::int64_t values_before = 0;
    std::size_t start = 0;
    for (const std::int32_t size : sizes) {
      const auto splits = row_split.subspan(start, size);
      OP_REQUIRES_OK(ctx, CheckRowSplits(splits, "row_split", splits.back()));
      OP_REQUIRES(ctx, SizeSum(values_before, splits.back()) != kTooLarge,
                  absl::InvalidArgumentError(absl::StrCat(
                      "`row_split` must end at the number of values, but ", values_before, " and ",
                      splits.back(), " values together do not fit into an int64.")));
      for (const std::int64_t split : splits.subspan(1)) *normed++ = values_before + split;
      values_before += splits.back();
      start += size;
    }
  }
};

#define REGISTER_KERNELS(TYPE)                                                                 \
  REGISTER_KERNEL_BUILDER(                                                                     \
      Name("MonolithSplitByIndices").Device(tf::DEVICE_CPU).TypeConstraint<TYPE>("T"),         \
      SplitByIndicesOp<TYPE>);                                                                 \
  REGISTER_KERNEL_BUILDER(                                                                     \
      Name("MonolithSplitByIndicesGradient").Device(tf::DEVICE_CPU).TypeConstraint<TYPE>("T"), \
      SplitByIndicesGradientOp<TYPE>)
REGISTER_KERNELS(float);
REGISTER_KERNELS(std::int64_t);
#undef REGISTER_KERNELS
REGISTER_KERNEL_BUILDER(Name("MonolithRaggedSplitByIndices").Device(tf::DEVICE_CPU),
                        RaggedSplitByIndicesOp);
REGISTER_KERNEL_BUILDER(Name("MonolithNormalizeMergedSplit").Device(tf::DEVICE_CPU),
                        NormalizeMergedSplitOp);

}  // namespace
}  // namespace monolith::ops
