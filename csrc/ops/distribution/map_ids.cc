// Rows of distinct ids brought to all places where the ids occur.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/table/id_numbers.h"
#include "ops/distribution/rows.h"
#include "ops/system/kept_outputs.h"
#include "ops/system/parallel.h"
#include "ops/system/sizes.h"
#include "ops/system/status_guard.h"
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

// The shape of one row for each element of input `input`.
absl::Status SetRowsShape(InferenceContext* c, int input, DimensionHandle dim) {
  ShapeHandle output;
  TF_RETURN_IF_ERROR(c->Concatenate(c->input(input), c->Vector(dim), &output));
  c->set_output(0, output);
  return absl::OkStatus();
}

REGISTER_OP("MonolithMapIdToEmbedding")
    .Input("ids: num_splits * int64")
    .Input("embeddings: num_splits * float")
    .Input("input: int64")
    .Output("output: float")
    .Attr("num_splits: int >= 1")
    .Attr("use_multi_threads: bool = true")
    .SetShapeFn([](InferenceContext* c) {
      const int n = (c->num_inputs() - 1) / 2;
      DimensionHandle dim = c->UnknownDim();
      for (int i = 0; i < n; ++i) {
        ShapeHandle rows;
        TF_RETURN_IF_ERROR(c->WithRank(c->input(n + i), 2, &rows));
        TF_RETURN_IF_ERROR(c->Merge(dim, c->Dim(rows, 1), &dim));
      }
      return SetRowsShape(c, 2 * n, dim);
    })
    .Doc(R"doc(
Returns for each id of `input` its row.

ids: Distinct ids, in several parts.
embeddings: The rows of each part, [ids, dim].
output: [shape of input, dim].
)doc");

REGISTER_OP("MonolithMapIdToEmbeddingGradient")
    .Input("ids: num_splits * int64")
    .Input("input: int64")
    .Input("grads: float")
    .Output("embedding_grads: num_splits * float")
    .Attr("num_splits: int >= 1")
    .SetShapeFn([](InferenceContext* c) {
      const int n = c->num_inputs() - 2;
      ShapeHandle grads;
      TF_RETURN_IF_ERROR(c->WithRankAtLeast(c->input(n + 1), 1, &grads));
      const DimensionHandle dim = c->RankKnown(grads) ? c->Dim(grads, -1) : c->UnknownDim();
      for (int i = 0; i < n; ++i) c->set_output(i, c->Matrix(c->NumElements(c->input(i)), dim));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Sums the gradients of all occurrences of each id.
)doc");

REGISTER_OP("MonolithGatherEmbeddingsByInput")
    .Input("ids: int64")
    .Input("embeddings: float")
    .Input("input: int64")
    .Output("output: float")
    .Output("output_index_mapping: int32")
    .Attr("use_multi_threads: bool = false")
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle rows;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 2, &rows));
      DimensionHandle unused;
      TF_RETURN_IF_ERROR(c->Merge(c->NumElements(c->input(0)), c->Dim(rows, 0), &unused));
      c->set_output(1, c->input(2));
      return SetRowsShape(c, 2, c->Dim(rows, 1));
    })
    .Doc(R"doc(
Returns for each id of `input` its row, and the position of that row in `embeddings`.
)doc");

REGISTER_OP("MonolithGatherEmbeddingsByInputGradient")
    .Input("ids: int64")
    .Input("grads: float")
    .Input("index_mapping: int32")
    .Output("embedding_grads: float")
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle grads;
      TF_RETURN_IF_ERROR(c->WithRankAtLeast(c->input(1), 1, &grads));
      const DimensionHandle dim = c->RankKnown(grads) ? c->Dim(grads, -1) : c->UnknownDim();
      c->set_output(0, c->Matrix(c->NumElements(c->input(0)), dim));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Sums the gradients of all places that MonolithGatherEmbeddingsByInput has filled from each row.
)doc");

// Ids in several parts, each with one row; of equal ids the first counts.
class IdsInParts {
 public:
  absl::Status Init(const std::vector<const tf::Tensor*>& parts) {
    return Guard([&] {
      std::size_t total = 0;
      for (const tf::Tensor* part : parts) total += part->NumElements();
      numbers_ = std::make_unique<core::IdNumbers>(total);
      for (std::size_t p = 0; p < parts.size(); ++p) {
        const auto ids = Flat<std::int64_t>(*parts[p]);
        for (std::size_t i = 0; i < ids.size(); ++i) {
          if (numbers_->Add(ids[i]) == places_.size()) {
            places_.push_back({static_cast<std::int64_t>(p), static_cast<std::int64_t>(i)});
          }
        }
      }
    });
  }

  struct Place {
    std::int64_t part;
    std::int64_t row;
  };

  // Returns where the row of each of `ids` is, or the error of an id that is in no part.
  absl::Status Find(absl::Span<const std::int64_t> ids, std::vector<Place>* places) const {
    places->resize(ids.size());
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const std::uint32_t number = numbers_->Find(ids[i]);
      if (number == core::IdNumbers::kAbsent) {
        return absl::InvalidArgumentError(absl::StrCat("Unable to map id ", ids[i]));
      }
      (*places)[i] = places_[number];
    }
    return absl::OkStatus();
  }

 private:
  std::unique_ptr<core::IdNumbers> numbers_;
  std::vector<Place> places_;  // By number.
};

// Checks that `embeddings` has a row for each of `ids`.
absl::Status CheckEmbeddings(const tf::Tensor& ids, const tf::Tensor& embeddings) {
  if (embeddings.dims() == 2 && embeddings.dim_size(0) == ids.NumElements()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("`embeddings` must have one row for each of ",
                                                 ids.NumElements(), " `ids`, got shape ",
                                                 embeddings.shape().DebugString(), "."));
}

// The width of `grads`, which has one row for each element of `input`.
absl::Status RowWidth(const tf::Tensor& input, const tf::Tensor& grads, const char* input_name,
                      std::int64_t* dim) {
  *dim = grads.dims() == 0 ? 0 : grads.dim_size(grads.dims() - 1);
  if (grads.dims() > 0 && grads.NumElements() == SizeProduct(input.NumElements(), *dim)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("`grads` must have one row for each of ", input.NumElements(), " elements of `",
                   input_name, "`, got shape ", grads.shape().DebugString(), "."));
}

absl::Status RowsShape(const tf::Tensor& input, std::int64_t dim, tf::TensorShape* shape) {
  *shape = input.shape();
  return shape->AddDimWithStatus(dim);
}

class MapIdToEmbeddingOp final : public tf::OpKernel {
 public:
  explicit MapIdToEmbeddingOp(tf::OpKernelConstruction* ctx) : tf::OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("num_splits", &num_splits_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("use_multi_threads", &use_multi_threads_));
  }

  void Compute(tf::OpKernelContext* ctx) override {
    std::vector<const tf::Tensor*> ids;
    std::vector<const float*> rows;
    const std::int64_t dim =
        ctx->input(num_splits_).dims() == 2 ? ctx->input(num_splits_).dim_size(1) : 0;
    for (int i = 0; i < num_splits_; ++i) {
      const tf::Tensor& embeddings = ctx->input(num_splits_ + i);
      OP_REQUIRES_OK(ctx, CheckEmbeddings(ctx->input(i), embeddings));
      OP_REQUIRES(ctx, embeddings.dim_size(1) == dim,
                  absl::InvalidArgumentError(absl::StrCat(
                      "All `embeddings` must be equally wide, but the first is ", dim,
                      " floats wide and number ", i, " is ", embeddings.dim_size(1), ".")));
      ids.push_back(&ctx->input(i));
      rows.push_back(embeddings.flat<float>().data());
    }
    const tf::Tensor& input = ctx->input(2 * num_splits_);
    IdsInParts parts;
    OP_REQUIRES_OK(ctx, parts.Init(ids));
    std::vector<IdsInParts::Place> places;
    OP_REQUIRES_OK(ctx, parts.Find(Flat<std::int64_t>(input), &places));

    tf::TensorShape shape;
    OP_REQUIRES_OK(ctx, RowsShape(input, dim, &shape));
    float* output = nullptr;
    OP_REQUIRES_OK(ctx, outputs_.Allocate(ctx, 0, shape, &output));
    const auto copy = [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        std::copy_n(rows[places[i].part] + places[i].row * dim, dim, output + i * dim);
      }
    };
    if (use_multi_threads_) {
      ParallelFor(ctx, input.NumElements(), 10 + dim, copy);
    } else {
      copy(0, input.NumElements());
    }
  }

 private:
  int num_splits_ = 0;
  bool use_multi_threads_ = true;
  KeptOutputs outputs_;
};

class MapIdToEmbeddingGradientOp final : public tf::OpKernel {
 public:
  using tf::OpKernel::OpKernel;

  void Compute(tf::OpKernelContext* ctx) override {
    const int num_splits = ctx->num_inputs() - 2;
    const tf::Tensor& input = ctx->input(num_splits);
    const tf::Tensor& grads = ctx->input(num_splits + 1);
    std::int64_t dim = 0;
    OP_REQUIRES_OK(ctx, RowWidth(input, grads, "input", &dim));
    std::vector<const tf::Tensor*> ids;
    for (int i = 0; i < num_splits; ++i) ids.push_back(&ctx->input(i));
    IdsInParts parts;
    OP_REQUIRES_OK(ctx, parts.Init(ids));
    std::vector<IdsInParts::Place> places;
    OP_REQUIRES_OK(ctx, parts.Find(Flat<std::int64_t>(input), &places));

    std::vector<float*> sums(num_splits);
    for (int i = 0; i < num_splits; ++i) {
      OP_REQUIRES_OK(
          ctx, CheckSize("grads", SizeProduct(ids[i]->NumElements(), dim), grads.NumElements()));
      tf::TensorShape shape;
      OP_REQUIRES_OK(ctx, MakeShape({ids[i]->NumElements(), dim}, &shape));
      OP_REQUIRES_OK(ctx, outputs_.Allocate(ctx, i, shape, &sums[i]));
      std::fill_n(sums[i], shape.num_elements(), 0.0F);
    }
    const float* grad = grads.flat<float>().data();
    for (const auto& [part, row] : places) {
      AddRow(grad, dim, sums[part] + row * dim);
      grad += dim;
    }
  }

 private:
  KeptOutputs outputs_;
};

class GatherEmbeddingsByInputOp final : public tf::OpKernel {
 public:
  explicit GatherEmbeddingsByInputOp(tf::OpKernelConstruction* ctx) : tf::OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("use_multi_threads", &use_multi_threads_));
  }

  void Compute(tf::OpKernelContext* ctx) override {
    const tf::Tensor& embeddings = ctx->input(1);
    OP_REQUIRES_OK(ctx, CheckEmbeddings(ctx->input(0), embeddings));
    const std::int64_t dim = embeddings.dim_size(1);
    const tf::Tensor& input = ctx->input(2);
    IdsInParts parts;
    OP_REQUIRES_OK(ctx, parts.Init({&ctx->input(0)}));
    std::vector<IdsInParts::Place> places;
    OP_REQUIRES_OK(ctx, parts.Find(Flat<std::int64_t>(input), &places));

    tf::TensorShape shape;
    OP_REQUIRES_OK(ctx, RowsShape(input, dim, &shape));
    float* output = nullptr;
    OP_REQUIRES_OK(ctx, outputs_.Allocate(ctx, 0, shape, &output));
    tf::Tensor* mapping = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(1, input.shape(), &mapping));
    std::int32_t* row_of = mapping->flat<std::int32_t>().data();
    const float* rows = embeddings.flat<float>().data();
    const auto copy = [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        row_of[i] = static_cast<std::int32_t>(places[i].row);
        std::copy_n(rows + places[i].row * dim, dim, output + i * dim);
      }
    };
    if (use_multi_threads_) {
      ParallelFor(ctx, input.NumElements(), 10 + dim, copy);
    } else {
      copy(0, input.NumElements());
    }
  }

 private:
  bool use_multi_threads_ = false;
  KeptOutputs outputs_;
};

class GatherEmbeddingsByInputGradientOp final : public tf::OpKernel {
 public:
  using tf::OpKernel::OpKernel;

  void Compute(tf::OpKernelContext* ctx) override {
    const std::int64_t num_ids = ctx->input(0).NumElements();
    const tf::Tensor& grads = ctx->input(1);
    const auto row_of = Flat<std::int32_t>(ctx->input(2));
    std::int64_t dim = 0;
    OP_REQUIRES_OK(ctx, RowWidth(ctx->input(2), grads, "index_mapping", &dim));
    for (std::size_t i = 0; i < row_of.size(); ++i) {
      OP_REQUIRES(ctx, row_of[i] >= 0 && row_of[i] < num_ids,
                  BadIndex("index_mapping", static_cast<std::int64_t>(i), row_of[i], num_ids));
    }
    OP_REQUIRES_OK(ctx, CheckSize("grads", SizeProduct(num_ids, dim), grads.NumElements()));
    tf::TensorShape shape;
    OP_REQUIRES_OK(ctx, MakeShape({num_ids, dim}, &shape));
    float* sums = nullptr;
    OP_REQUIRES_OK(ctx, outputs_.Allocate(ctx, 0, shape, &sums));
    std::fill_n(sums, shape.num_elements(), 0.0F);
    const float* grad = grads.flat<float>().data();
    for (const std::int32_t row : row_of) {
      AddRow(grad, dim, sums + row * dim);
      grad += dim;
    }
  }

 private:
  KeptOutputs outputs_;
};

REGISTER_KERNEL_BUILDER(Name("MonolithMapIdToEmbedding").Device(tf::DEVICE_CPU),
                        MapIdToEmbeddingOp);
REGISTER_KERNEL_BUILDER(Name("MonolithMapIdToEmbeddingGradient").Device(tf::DEVICE_CPU),
                        MapIdToEmbeddingGradientOp);
REGISTER_KERNEL_BUILDER(Name("MonolithGatherEmbeddingsByInput").Device(tf::DEVICE_CPU),
                        GatherEmbeddingsByInputOp);
REGISTER_KERNEL_BUILDER(Name("MonolithGatherEmbeddingsByInputGradient").Device(tf::DEVICE_CPU),
                        GatherEmbeddingsByInputGradientOp);

}  // namespace
}  // namespace monolith::ops
