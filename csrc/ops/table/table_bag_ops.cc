// Ops on bags of ids, of whose rows only the sum or the mean is wanted.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/table/row_bags.h"
#include "ops/system/parallel.h"
#include "ops/system/status_guard.h"
#include "ops/system/tensor_checks.h"
#include "ops/table/table_calls.h"
#include "ops/table/table_set.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace monolith::ops {
namespace {

namespace tf = tensorflow;
namespace shapes = tensorflow::shape_inference;

REGISTER_OP("MonolithHashTableLookupBags")
    .Input("table_handle: resource")
    .Input("ids: int64")
    .Input("row_splits: int64")
    .Output("bags: float")
    .Attr("dim_size: int >= 1")
    .Attr("combiner: {'sum', 'mean', 'sqrtn'} = 'sum'")
    .SetIsStateful()
    .SetShapeFn([](shapes::InferenceContext* c) {
      std::int64_t dim = 0;
      TF_RETURN_IF_ERROR(c->GetAttr("dim_size", &dim));
      if (dim > kMostPerDimension) {
        return absl::InvalidArgumentError(
            absl::StrCat("`dim_size` must be at most ", kMostPerDimension, ", got ", dim, "."));
      }
      shapes::ShapeHandle splits;
      shapes::DimensionHandle bags;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(2), 1, &splits));
      TF_RETURN_IF_ERROR(c->Subtract(c->Dim(splits, 0), 1, &bags));
      c->set_output(0, c->Matrix(bags, dim));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Returns a vector for each bag of ids, [bags, dim_size]: the rows of ids [row_splits[b],
row_splits[b + 1]) combined. Absent ids count as zeros and get no row; bags without ids are zeros.
)doc");

REGISTER_OP("MonolithHashTableLookupBagsGradient")
    .Input("ids: int64")
    .Input("row_splits: int64")
    .Input("gradient: float")
    .Output("by_rows: float")
    .Attr("combiner: {'sum', 'mean', 'sqrtn'} = 'sum'")
    .SetShapeFn([](shapes::InferenceContext* c) {
      shapes::ShapeHandle gradient;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(2), 2, &gradient));
      c->set_output(0, c->Matrix(c->NumElements(c->input(0)), c->Dim(gradient, 1)));
      return absl::OkStatus();
    })
    .Doc("Returns for each of `ids` the gradient of its row, from those of the bags, [bags, dim].");

REGISTER_OP("MonolithHashTableOptimizeBags")
    .Input("table_handle: resource")
    .Input("ids: int64")
    .Input("row_splits: int64")
    .Input("gradient: float")
    .Input("learning_rate_tensor: float")
    .Input("req_time: int64")
    .Input("global_step: int64")
    .Output("table_handle_output: resource")
    .Attr("combiner: {'sum', 'mean', 'sqrtn'} = 'sum'")
    .SetIsStateful()
    .SetShapeFn(shapes::ScalarShape)
    .Doc(R"doc(
Takes an optimizer step for each distinct id on the sum of its gradients, which are those of the
bags it is in, `gradient`, [bags, dim]. The same as MonolithHashTableOptimize with what
MonolithHashTableLookupBagsGradient makes of `gradient`, without a row for each id in between.
)doc");

absl::Status ReadCombiner(tf::OpKernelConstruction* ctx, core::BagCombiner* combiner) {
  std::string name;
  TF_RETURN_IF_ERROR(ctx->GetAttr("combiner", &name));
  return Guard([&] { *combiner = core::ParseBagCombiner(name); });
}

absl::Status CheckOneTable(const TableSet& set) {
  if (set.size() == 1) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(set.name(), " holds ", set.size(), " tables, and bags need one."));
}

// Calls `work(first, last)` on parts of the bags, on several threads if their ids are worth them.
// Parts have about as many ids each: a batch may have single ids first and long histories behind.
template <typename Work>
absl::Status ForBags(tf::OpKernelContext* ctx, absl::Span<const std::int64_t> splits, Work&& work) {
  const std::size_t num_bags = splits.size() - 1;
  const std::int64_t num_ids = splits.back();
  if (num_bags == 0) return absl::OkStatus();
  if (!WorthThreads(ctx, static_cast<std::size_t>(num_ids), false)) {
    return Guard([&] { work(std::size_t{0}, num_bags); });
  }
  constexpr std::int64_t kPartsPerThread = 4;
  const std::int64_t parts =
      kPartsPerThread * ctx->device()->tensorflow_cpu_worker_threads()->num_threads;
  const auto start_of = [&](std::int64_t part) {
    if (part == parts) return num_bags;
    const std::int64_t first_id = num_ids / parts * part;
    return static_cast<std::size_t>(std::lower_bound(splits.begin(), splits.end(), first_id) -
                                    splits.begin());
  };
  std::mutex mutex;
  absl::Status status;
  DealOut(ctx, parts, [&](std::int64_t part) {
    const std::size_t first = start_of(part), last = start_of(part + 1);
    if (first == last) return;
    absl::Status done = Guard([&] { work(first, last); });
    const std::lock_guard<std::mutex> lock(mutex);
    status.Update(done);
  });
  return status;
}

class LookupBagsOp final : public tf::OpKernel {
 public:
  explicit LookupBagsOp(tf::OpKernelConstruction* ctx) : tf::OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("dim_size", &dim_size_));
    OP_REQUIRES_OK(ctx, ReadCombiner(ctx, &combiner_));
  }

  void Compute(tf::OpKernelContext* ctx) override {
    tf::core::RefCountPtr<TableSet> set;
    OP_REQUIRES_OK(ctx, GetTableSet(ctx, 0, &set));
    OP_REQUIRES_OK(ctx, CheckOneTable(*set));
    const std::shared_ptr<core::EmbeddingTable> table = set->tables()->front();
    OP_REQUIRES(
        ctx, dim_size_ == static_cast<std::int64_t>(table->dim()),
        absl::InvalidArgumentError(absl::StrCat("`dim_size` is ", dim_size_, ", but table ",
                                                set->name(), " has dim ", table->dim(), ".")));
    const tf::Tensor& ids = ctx->input(1);
    OP_REQUIRES_OK(ctx, CheckRank(ctx->input(2), "row_splits", 1));
    const absl::Span<const std::int64_t> splits = Flat<std::int64_t>(ctx->input(2));
    OP_REQUIRES_OK(ctx, CheckRowSplits(splits, "row_splits", ids.NumElements()));
    const std::size_t num_bags = splits.size() - 1;
    tf::TensorShape shape;
    OP_REQUIRES_OK(ctx, MakeShape({static_cast<std::int64_t>(num_bags), dim_size_}, &shape));
    tf::Tensor* bags = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, shape, &bags));
    OP_REQUIRES_OK(ctx, ForBags(ctx, splits, [&](std::size_t first, std::size_t last) {
                     core::LookupBags(*table, ids.flat<std::int64_t>().data(), splits.data(), first,
                                      last, combiner_, bags->flat<float>().data());
                   }));
  }

 private:
  std::int64_t dim_size_ = 0;
  core::BagCombiner combiner_ = core::BagCombiner::kSum;
};

// Checks that `splits` divide the ids into bags, and that `gradient` has a row for each.
absl::Status CheckBagGradient(const tf::Tensor& row_splits, std::int64_t num_ids,
                              const tf::Tensor& gradient) {
  TF_RETURN_IF_ERROR(CheckRank(row_splits, "row_splits", 1));
  TF_RETURN_IF_ERROR(CheckRowSplits(Flat<std::int64_t>(row_splits), "row_splits", num_ids));
  TF_RETURN_IF_ERROR(CheckRank(gradient, "gradient", 2));
  const std::int64_t num_bags = row_splits.NumElements() - 1;
  if (gradient.dim_size(0) == num_bags) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("`gradient` must have ", num_bags,
                                                 " rows, one per bag, got shape ",
                                                 gradient.shape().DebugString(), "."));
}

class LookupBagsGradientOp final : public tf::OpKernel {
 public:
  explicit LookupBagsGradientOp(tf::OpKernelConstruction* ctx) : tf::OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ReadCombiner(ctx, &combiner_));
  }

  void Compute(tf::OpKernelContext* ctx) override {
    const std::int64_t num_ids = ctx->input(0).NumElements();
    const tf::Tensor& gradient = ctx->input(2);
    OP_REQUIRES_OK(ctx, CheckBagGradient(ctx->input(1), num_ids, gradient));
    const absl::Span<const std::int64_t> splits = Flat<std::int64_t>(ctx->input(1));
    const std::int64_t dim = gradient.dim_size(1);
    tf::TensorShape shape;
    OP_REQUIRES_OK(ctx, MakeShape({num_ids, dim}, &shape));
    tf::Tensor* rows = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, shape, &rows));
    OP_REQUIRES_OK(ctx, ForBags(ctx, splits, [&](std::size_t first, std::size_t last) {
                     core::SpreadBags(splits.data(), first, last, static_cast<std::size_t>(dim),
                                      combiner_, gradient.flat<float>().data(),
                                      rows->flat<float>().data());
                   }));
  }

 private:
  core::BagCombiner combiner_ = core::BagCombiner::kSum;
};

class OptimizeBagsOp final : public tf::OpKernel {
 public:
  explicit OptimizeBagsOp(tf::OpKernelConstruction* ctx) : tf::OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ReadCombiner(ctx, &combiner_));
  }

  void Compute(tf::OpKernelContext* ctx) override {
    tf::core::RefCountPtr<TableSet> set;
    OP_REQUIRES_OK(ctx, GetTableSet(ctx, 0, &set));
    OP_REQUIRES_OK(ctx, CheckForTraining(*set));
    OP_REQUIRES_OK(ctx, CheckOneTable(*set));
    const std::shared_ptr<core::EmbeddingTable> table = set->tables()->front();
    const tf::Tensor& ids = ctx->input(1);
    const tf::Tensor& gradient = ctx->input(3);
    const tf::Tensor& learning_rates = ctx->input(4);
    OP_REQUIRES_OK(ctx, CheckBagGradient(ctx->input(2), ids.NumElements(), gradient));
    const absl::Span<const std::int64_t> splits = Flat<std::int64_t>(ctx->input(2));
    const std::size_t n = ids.NumElements(), num_bags = splits.size() - 1;
    OP_REQUIRES_OK(ctx, CheckRows(set->name(), num_bags, table->dim(), gradient.NumElements()));
    OP_REQUIRES(ctx, num_bags <= std::numeric_limits<std::uint32_t>::max(),
                absl::InvalidArgumentError(
                    absl::StrCat("There are ", num_bags, " bags, more than 2^32 - 1.")));
    OP_REQUIRES_OK(ctx, CheckLearningRates(learning_rates, set->num_learning_rates(), set->name()));
    UpdateArguments arguments;
    OP_REQUIRES_OK(ctx, ReadNonNegative(ctx, 5, "req_time", &arguments.update_time_sec));
    OP_REQUIRES_OK(ctx, ReadNonNegative(ctx, 6, "global_step", &arguments.global_step));
    arguments.sum_equal_ids = true;
    const core::Parallel parallel = OnAllThreads(ctx);
    OP_REQUIRES_OK(ctx, NameTable(Guard([&] {
                                    std::vector<std::uint32_t> bag_of(n);
                                    std::vector<float> scaled(num_bags * table->dim());
                                    core::ShareBags(splits.data(), num_bags, table->dim(),
                                                    combiner_, gradient.flat<float>().data(),
                                                    bag_of.data(), scaled.data());
                                    arguments.gradient_of = bag_of.data();
                                    Optimize(*set, 0, *table, ids.flat<std::int64_t>().data(), n,
                                             scaled.data(), learning_rates.flat<float>().data(),
                                             arguments,
                                             WorthThreads(ctx, n, false) ? &parallel : nullptr);
                                  }),
                                  set->name()));
    ctx->set_output(0, ctx->input(0));
  }

 private:
  core::BagCombiner combiner_ = core::BagCombiner::kSum;
};

REGISTER_KERNEL_BUILDER(Name("MonolithHashTableLookupBags").Device(tf::DEVICE_CPU), LookupBagsOp);
REGISTER_KERNEL_BUILDER(Name("MonolithHashTableLookupBagsGradient").Device(tf::DEVICE_CPU),
                        LookupBagsGradientOp);
REGISTER_KERNEL_BUILDER(Name("MonolithHashTableOptimizeBags").Device(tf::DEVICE_CPU),
                        OptimizeBagsOp);

}  // namespace
}  // namespace monolith::ops
