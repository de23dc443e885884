// Ids ordered by the shard that holds their rows, for exchanges between workers.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/table/id_numbers.h"
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

REGISTER_OP("MonolithReorderByIndices")
    .Input("input: T")
    .Input("shard_ids: int32")
    .Output("reordered_tensor: T")
    .Output("shard_sizes: int32")
    .Attr("num_of_shards: int >= 1")
    .Attr("T: {int32, int64}")
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle merged;
      TF_RETURN_IF_ERROR(c->Merge(c->input(0), c->input(1), &merged));
      TF_RETURN_IF_ERROR(c->WithRank(merged, 1, &merged));
      std::int64_t num_of_shards = 0;
      TF_RETURN_IF_ERROR(c->GetAttr("num_of_shards", &num_of_shards));
      TF_RETURN_IF_ERROR(CheckShards(num_of_shards));
      c->set_output(0, c->UnknownShapeOfRank(1));
      c->set_output(1, c->Vector(num_of_shards));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Returns the distinct ids shard by shard, the one that came last first within a shard.

shard_ids: For each id its shard, within [0, num_of_shards).
shard_sizes: The number of ids of each shard.
)doc");

REGISTER_OP("FusedReorderByIndices")
    .Input("input: M * T")
    .Output("output: T")
    .Output("shard_sizes: int32")
    .Output("sharded_slot_sizes: int32")
    .Output("emb_offset_sz: int32")
    .Output("fused_emb_offset: int32")
    .Attr("num_of_shards: int >= 1")
    .Attr("slot_embedding_dims: list(int)")
    .Attr("rank0_empty: bool = true")
    .Attr("M: int >= 1")
    .Attr("T: {int64} = DT_INT64")
    .SetShapeFn([](InferenceContext* c) {
      const int m = c->num_inputs();
      std::int64_t num_of_shards = 0;
      TF_RETURN_IF_ERROR(c->GetAttr("num_of_shards", &num_of_shards));
      TF_RETURN_IF_ERROR(CheckShards(num_of_shards));
      DimensionHandle total = c->MakeDim(std::int64_t{0});
      for (int i = 0; i < m; ++i) {
        TF_RETURN_IF_ERROR(c->Add(total, c->NumElements(c->input(i)), &total));
      }
      c->set_output(0, c->UnknownShapeOfRank(1));
      c->set_output(1, c->Vector(num_of_shards));
      c->set_output(2, c->Vector(num_of_shards * m));
      c->set_output(3, c->Vector(m));
      c->set_output(4, c->Vector(total));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Returns the distinct ids of several slots shard by shard, within a shard slot by slot.

The shard of an id is id mod num_of_shards; with rank0_empty and more than 4 shards, shard 0 gets
none.

sharded_slot_sizes: For each shard the number of ids of each slot.
emb_offset_sz: The number of ids of each slot before equal ones became one.
fused_emb_offset: For each of these, where its row begins among the rows of the output.
)doc");

// The remainder that is never negative, as tf.math.floormod has it.
std::int64_t FloorMod(std::int64_t a, std::int64_t b) {
  const std::int64_t remainder = a % b;
  return remainder < 0 ? remainder + b : remainder;
}

template <typename T>
class ReorderByIndicesOp final : public tf::OpKernel {
 public:
  explicit ReorderByIndicesOp(tf::OpKernelConstruction* ctx) : tf::OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("num_of_shards", &num_of_shards_));
    OP_REQUIRES_OK(ctx, CheckShards(num_of_shards_));
  }

  void Compute(tf::OpKernelContext* ctx) override {
    const auto ids = Flat<T>(ctx->input(0));
    const auto shard_ids = Flat<std::int32_t>(ctx->input(1));
    OP_REQUIRES_OK(
        ctx, CheckNumElements(ctx->input(1), "shard_ids", static_cast<std::int64_t>(ids.size()),
                              "one for each element of `input`"));
    std::vector<std::int32_t> shard_of;  // By number of the distinct id.
    std::vector<std::int64_t> distinct;
    OP_REQUIRES_OK(ctx, Guard([&] {
                     core::IdNumbers numbers(ids.size());
                     for (std::size_t i = 0; i < ids.size(); ++i) {
                       if (numbers.Add(ids[i]) == shard_of.size()) {
                         shard_of.push_back(shard_ids[i]);
                       }
                     }
                     distinct = std::move(numbers).TakeIds();
                   }));
    tf::Tensor* sizes_tensor = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(1, tf::TensorShape({num_of_shards_}), &sizes_tensor));
    std::int32_t* sizes = sizes_tensor->flat<std::int32_t>().data();
    std::fill_n(sizes, num_of_shards_, 0);
    for (std::size_t i = 0; i < shard_ids.size(); ++i) {
      OP_REQUIRES(
          ctx, shard_ids[i] >= 0 && shard_ids[i] < num_of_shards_,
          BadIndex("shard_ids", static_cast<std::int64_t>(i), shard_ids[i], num_of_shards_));
    }
    for (const std::int32_t shard : shard_of) ++sizes[shard];

    tf::Tensor* output = nullptr;
    OP_REQUIRES_OK(
        ctx, ctx->allocate_output(0, tf::TensorShape({static_cast<std::int64_t>(distinct.size())}),
                                  &output));
    std::vector<T*> end_of_shard(num_of_shards_);
    T* end = output->flat<T>().data();
    for (std::int64_t s = 0; s < num_of_shards_; ++s) end_of_shard[s] = end += sizes[s];
    for (std::size_t i = 0; i < distinct.size(); ++i) {
      *--end_of_shard[shard_of[i]] = static_cast<T>(distinct[i]);
    }
  }

 private:
  std::int64_t num_of_shards_ = 0;
};

class FusedReorderByIndicesOp final : public tf::OpKernel {
 public:
  explicit FusedReorderByIndicesOp(tf::OpKernelConstruction* ctx) : tf::OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("num_of_shards", &num_of_shards_));
    OP_REQUIRES_OK(ctx, CheckShards(num_of_shards_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("slot_embedding_dims", &dims_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("rank0_empty", &rank0_empty_));
    OP_REQUIRES(ctx, dims_.size() == static_cast<std::size_t>(ctx->num_inputs()),
                absl::InvalidArgumentError(
                    absl::StrCat("`slot_embedding_dims` must have one element for each of the ",
                                 ctx->num_inputs(), " inputs, got ", dims_.size(), ".")));
    for (const std::int64_t dim : dims_) {
      OP_REQUIRES(ctx, dim > 0,
                  absl::InvalidArgumentError(
                      absl::StrCat("`slot_embedding_dims` must be positive, got ", dim, ".")));
    }
  }

  void Compute(tf::OpKernelContext* ctx) override {
    const int num_slots = ctx->num_inputs();
    std::vector<Slot> slots(num_slots);
    std::vector<absl::Status> statuses(num_slots);
    std::int64_t num_ids = 0;
    for (int k = 0; k < num_slots; ++k) num_ids += ctx->input(k).NumElements();
    ParallelFor(ctx, num_slots, 50 * (num_ids / num_slots + 1),
                [&](std::int64_t begin, std::int64_t end) {
                  for (std::int64_t k = begin; k < end; ++k) {
                    statuses[k] = Guard([&] { Number(ctx->input(k), &slots[k]); });
                  }
                });
    for (const absl::Status& status : statuses) OP_REQUIRES_OK(ctx, status);

    tf::Tensor* tensors[3] = {};
    const std::int64_t sizes_of_outputs[3] = {num_of_shards_, num_of_shards_ * num_slots,
                                              num_slots};
    for (int i = 0; i < 3; ++i) {
      OP_REQUIRES_OK(
          ctx, ctx->allocate_output(i + 1, tf::TensorShape({sizes_of_outputs[i]}), &tensors[i]));
    }
    auto shard_sizes = tensors[0]->flat<std::int32_t>();
    auto sharded_slot_sizes = tensors[1]->flat<std::int32_t>();
    auto slot_lengths = tensors[2]->flat<std::int32_t>();
    std::int64_t next_id = 0;
    std::int64_t next_float = 0;
    for (int s = 0; s < num_of_shards_; ++s) {
      const std::int64_t first_of_shard = next_id;
      for (int k = 0; k < num_slots; ++k) {
        Slot& slot = slots[k];
        slot.next_id[s] = next_id;
        slot.next_float[s] = next_float;
        sharded_slot_sizes(s * num_slots + k) = static_cast<std::int32_t>(slot.sizes[s]);
        next_id += slot.sizes[s];
        next_float = SizeSum(next_float, SizeProduct(slot.sizes[s], dims_[k]));
      }
      shard_sizes(s) = static_cast<std::int32_t>(next_id - first_of_shard);
    }
    for (int k = 0; k < num_slots; ++k) {
      slot_lengths(k) = static_cast<std::int32_t>(slots[k].numbers.size());
    }
    OP_REQUIRES(ctx, next_float <= std::numeric_limits<std::int32_t>::max(),
                absl::InvalidArgumentError(
                    absl::StrCat("The rows of a batch have ", next_float,
                                 " floats, too many for int32 offsets; use a smaller batch.")));

    tf::Tensor* output = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, tf::TensorShape({next_id}), &output));
    tf::Tensor* offsets_tensor = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(4, tf::TensorShape({num_ids}), &offsets_tensor));
    std::int64_t* ids = output->flat<std::int64_t>().data();
    std::int32_t* offsets = offsets_tensor->flat<std::int32_t>().data();
    std::vector<std::int32_t> offset_of;  // By number of the distinct id.
    for (int k = 0; k < num_slots; ++k) {
      Slot& slot = slots[k];
      offset_of.resize(slot.distinct.size());
      for (std::size_t i = 0; i < slot.distinct.size(); ++i) {
        const std::int64_t shard = ShardOf(slot.distinct[i]);
        ids[slot.next_id[shard]++] = slot.distinct[i];
        offset_of[i] = static_cast<std::int32_t>(slot.next_float[shard]);
        slot.next_float[shard] += dims_[k];
      }
      for (const std::uint32_t number : slot.numbers) *offsets++ = offset_of[number];
    }
  }

 private:
  struct Slot {
    std::vector<std::uint32_t> numbers;  // Of each id.
    std::vector<std::int64_t> distinct;  // By number.
    // By shard: how many ids, and where the next id and its row go.
    std::vector<std::int64_t> sizes, next_id, next_float;
  };

  [[nodiscard]] std::int64_t ShardOf(std::int64_t id) const {
    // Rank 0 has other work to do; with only few ranks its help is missed more.
    if (rank0_empty_ && num_of_shards_ > 4) return FloorMod(id, num_of_shards_ - 1) + 1;
    return FloorMod(id, num_of_shards_);
  }

  void Number(const tf::Tensor& input, Slot* slot) const {
    const auto ids = Flat<std::int64_t>(input);
    core::IdNumbers numbers(ids.size());
    slot->numbers.reserve(ids.size());
    for (const std::int64_t id : ids) slot->numbers.push_back(numbers.Add(id));
    slot->distinct = std::move(numbers).TakeIds();
    slot->sizes.assign(num_of_shards_, 0);
    for (const std::int64_t id : slot->distinct) ++slot->sizes[ShardOf(id)];
    slot->next_id.resize(num_of_shards_);
    slot->next_float.resize(num_of_shards_);
  }

  std::int64_t num_of_shards_ = 0;
  std::vector<std::int64_t> dims_;
  bool rank0_empty_ = true;
};

#define REGISTER_KERNELS(TYPE)                                                           \
  REGISTER_KERNEL_BUILDER(                                                               \
      Name("MonolithReorderByIndices").Device(tf::DEVICE_CPU).TypeConstraint<TYPE>("T"), \
      ReorderByIndicesOp<TYPE>)
REGISTER_KERNELS(std::int32_t);
REGISTER_KERNELS(std::int64_t);
#undef REGISTER_KERNELS
REGISTER_KERNEL_BUILDER(Name("FusedReorderByIndices").Device(tf::DEVICE_CPU),
                        FusedReorderByIndicesOp);

}  // namespace
}  // namespace monolith::ops
