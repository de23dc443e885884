// The ids of all features of a layer as one list of ids in bags.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "ops/system/sizes.h"
#include "ops/system/tensor_checks.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace monolith::ops {
namespace {

namespace tf = tensorflow;

REGISTER_OP("MonolithJoinIds")
    .Input("ids: N * int64")
    .Input("splits: N * int64")
    .Output("joined: int64")
    .Output("row_splits: int64")
    .Output("counts: int64")
    .Attr("N: int >= 1")
    .Attr("salts: list(int)")
    .SetShapeFn([](tf::shape_inference::InferenceContext* c) {
      using Context = tf::shape_inference::InferenceContext;
      tf::shape_inference::ShapeHandle unused;
      const int n = c->num_inputs() / 2;
      for (int i = n; i < 2 * n; ++i) TF_RETURN_IF_ERROR(c->WithRank(c->input(i), 1, &unused));
      c->set_output(0, c->Vector(Context::kUnknownDim));
      c->set_output(1, c->Vector(Context::kUnknownDim));
      c->set_output(2, c->Vector(n));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Joins the ids of N features, one after the other, in bags whose rows a lookup combines.

ids: Of each feature, in any shape.
splits: Of each feature, where its bags begin and the last one ends; empty if there are none: then a
  bag has the ids along the last dimension, or, of a vector, one id.
salts: Of each feature, what its ids are mixed with by XOR, so that features share no row.
joined: All ids, as a vector.
row_splits: Where each bag begins in `joined`, and where the last one ends.
counts: How many bags each feature has.
)doc");

class JoinIdsOp final : public tf::OpKernel {
 public:
  explicit JoinIdsOp(tf::OpKernelConstruction* ctx) : tf::OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("salts", &salts_));
    OP_REQUIRES(ctx, 2 * static_cast<int>(salts_.size()) == ctx->num_inputs(),
                absl::InvalidArgumentError(absl::StrCat("`salts` must have one value for each of ",
                                                        ctx->num_inputs() / 2, " features, got ",
                                                        salts_.size(), ".")));
  }

  void Compute(tf::OpKernelContext* ctx) override {
    const int n = static_cast<int>(salts_.size());
    tf::Tensor* counts_tensor = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(2, tf::TensorShape({n}), &counts_tensor));
    std::int64_t* counts = counts_tensor->vec<std::int64_t>().data();
    std::int64_t num_ids = 0, num_bags = 0;
    for (int i = 0; i < n; ++i) {
      OP_REQUIRES_OK(ctx, CountBags(ctx->input(i), ctx->input(n + i), i, &counts[i]));
      num_ids = SizeSum(num_ids, ctx->input(i).NumElements());
      num_bags = SizeSum(num_bags, counts[i]);
    }
    OP_REQUIRES_OK(ctx, CheckSize("ids", num_bags, num_ids));
    tf::Tensor *joined = nullptr, *row_splits = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, tf::TensorShape({num_ids}), &joined));
    OP_REQUIRES_OK(ctx, ctx->allocate_output(1, tf::TensorShape({num_bags + 1}), &row_splits));
    std::int64_t* id = joined->vec<std::int64_t>().data();
    std::int64_t* end = row_splits->vec<std::int64_t>().data();
    std::int64_t start = 0;  // Of a feature's ids.
    *end++ = 0;
    for (int i = 0; i < n; ++i) {
      const auto ids = Flat<std::int64_t>(ctx->input(i));
      const auto splits = Flat<std::int64_t>(ctx->input(n + i));
      const std::int64_t salt = salts_[i];
      id = std::transform(ids.begin(), ids.end(), id, [=](std::int64_t x) { return x ^ salt; });
      if (splits.empty()) {
        const auto size = static_cast<std::int64_t>(ids.size());
        const std::int64_t length = counts[i] > 0 ? size / counts[i] : 0;
        for (std::int64_t bag = 1; bag <= counts[i]; ++bag) *end++ = start + bag * length;
      } else {
        end = std::transform(splits.begin() + 1, splits.end(), end,
                             [=](std::int64_t split) { return start + split; });
      }
      start += static_cast<std::int64_t>(ids.size());
    }
  }

 private:
  static absl::Status CountBags(const tf::Tensor& ids, const tf::Tensor& splits, int feature,
                                std::int64_t* count) {
    const std::string name = absl::StrCat("splits[", feature, "]");
    TF_RETURN_IF_ERROR(CheckRank(splits, name.c_str(), 1));
    if (splits.NumElements() > 0) {
      *count = splits.NumElements() - 1;
      return CheckRowSplits(Flat<std::int64_t>(splits), name.c_str(), ids.NumElements());
    }
    *count = ids.dims() < 2 ? ids.NumElements() : 1;
    for (int d = 0; d + 1 < ids.dims(); ++d) *count = SizeProduct(*count, ids.dim_size(d));
    return absl::OkStatus();
  }

  std::vector<std::int64_t> salts_;
};

REGISTER_KERNEL_BUILDER(Name("MonolithJoinIds").Device(tf::DEVICE_CPU), JoinIdsOp);

}  // namespace
}  // namespace monolith::ops
