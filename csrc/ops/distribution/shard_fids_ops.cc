// The ids of a batch divided among servers, with the offsets that EmbeddingToLayout takes.
#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/layout/id_sharding.h"
#include "core/layout/layout_config.h"
#include "core/layout/serialized_ids.h"
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
using tf::shape_inference::InferenceContext;
using tf::shape_inference::ShapeHandle;

absl::Status CheckNumLists(std::int64_t num_lists, std::size_t num_tables,
                           std::int64_t num_servers) {
  if (num_servers > kMostShards) {
    return absl::InvalidArgumentError(
        absl::StrCat("`ps_num` must be at most ", kMostShards, ", got ", num_servers, "."));
  }
  const std::int64_t expected = SizeProduct(static_cast<std::int64_t>(num_tables), num_servers);
  if (num_lists == expected) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("`num_lists` must be ", expected, ", a list for each of ", num_tables,
                   " tables and ", num_servers, " servers, got ", num_lists, "."));
}

absl::Status ShardFidsShape(InferenceContext* c) {
  std::int64_t num_lists = 0;
  TF_RETURN_IF_ERROR(c->GetAttr("num_lists", &num_lists));
  for (int i = 0; i < c->num_outputs(); ++i) c->set_output(i, c->UnknownShapeOfRank(1));
  // After the lists: three of offsets, whose sizes the batch decides, and five of sizes.
  const int first_size = static_cast<int>(2 * num_lists) + 3;
  for (int i = 0; i < 4; ++i) c->set_output(first_size + i, c->Vector(1));
  c->set_output(first_size + 4, c->Vector(num_lists));
  return absl::OkStatus();
}

constexpr char kShardFidsDoc[] = R"doc(
Divides the ids of features among servers, by their remainder.

shards: The ids of each list: table by table, and for each table server by server.
shards_row_split: Where the ids of each sub table begin in its list.
fid_offset: For each id of the batch its list and where in it its row begins, in floats.
feature_offset: For each example of a feature its first element of fid_offset.
nfl_offset: For each feature, sorted by name, its first element of feature_offset.
emb_size: The floats of each list's rows.
feature_cfgs: A serialized monolith.io.proto.FeatureConfigs.
unique: Whether equal ids of a sub table are sent once.
sub_tables: For each feature, sorted by name, the part of its table that has its ids; by default each
  feature is one of its own.
)doc";

#define MONOLITH_SHARD_FIDS_OUTPUTS                  \
  .Output("shards: num_lists * int64")               \
      .Output("shards_row_split: num_lists * int64") \
      .Output("fid_offset: uint64")                  \
      .Output("feature_offset: int32")               \
      .Output("nfl_offset: uint32")                  \
      .Output("batch_size: int32")                   \
      .Output("nfl_size: int32")                     \
      .Output("feature_size: int32")                 \
      .Output("fid_size: int32")                     \
      .Output("emb_size: int32")                     \
      .Attr("num_lists: int >= 1")                   \
      .Attr("ps_num: int >= 1")                      \
      .Attr("feature_cfgs: string")                  \
      .Attr("unique: bool")                          \
      .Attr("sub_tables: list(string) = []")         \
      .SetShapeFn(ShardFidsShape)                    \
      .Doc(kShardFidsDoc)

// clang-format off
REGISTER_OP("MonolithShardRaggedFids")
    .Input("fids: N * int64")
    .Input("row_splits: N * int64")
    .Attr("N: int >= 1")
    MONOLITH_SHARD_FIDS_OUTPUTS;
REGISTER_OP("MonolithShardSerializedFids")
    .Input("serialized: string")
    .Attr("input_type: string")
    MONOLITH_SHARD_FIDS_OUTPUTS;
// clang-format on

// What does not depend on where the ids come from.
class ShardFidsKernel : public tf::OpKernel {
 public:
  explicit ShardFidsKernel(tf::OpKernelConstruction* ctx) : tf::OpKernel(ctx) {
    std::string serialized;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("feature_cfgs", &serialized));
    OP_REQUIRES_OK(ctx, Guard([&] { config_ = core::ParseLayoutConfig(serialized); }));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("num_lists", &num_lists_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("ps_num", &num_servers_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("unique", &unique_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("sub_tables", &sub_tables_));
    OP_REQUIRES_OK(ctx, CheckNumLists(num_lists_, config_.tables.size(), num_servers_));
  }

 protected:
  // May throw what the core throws.
  void Shard(tf::OpKernelContext* ctx, const std::vector<core::FeatureIds>& features,
             std::int64_t batch_size) {
    core::IdSharding sharding(config_, sub_tables_, features, batch_size, num_servers_, unique_);
    std::int64_t num_ids = 0;
    for (const core::FeatureIds& feature : features) {
      num_ids += static_cast<std::int64_t>(feature.ids.size);
    }
    const auto num_rows = static_cast<std::int64_t>(sharding.num_rows());
    const std::int64_t cycles = 30 * (num_ids / num_rows + 1);
    std::vector<absl::Status> statuses(sharding.num_rows());
    ParallelFor(ctx, num_rows, cycles, [&](std::int64_t first, std::int64_t last) {
      for (; first < last; ++first) {
        const auto row = static_cast<std::size_t>(first);
        statuses[row] = Guard([&] { sharding.Number(row); });
      }
    });
    for (const absl::Status& status : statuses) OP_REQUIRES_OK(ctx, status);
    sharding.Place();
    ParallelFor(ctx, num_rows, cycles, [&](std::int64_t first, std::int64_t last) {
      for (; first < last; ++first) sharding.Fill(static_cast<std::size_t>(first));
    });

    int output = 0;
    for (const auto& ids : sharding.ids()) Emit(ctx, output++, ids);
    for (const auto& splits : sharding.row_splits()) Emit(ctx, output++, splits);
    Emit(ctx, output++, sharding.fid_offset());
    Emit(ctx, output++, sharding.feature_offset());
    Emit(ctx, output++, sharding.nfl_offset());
    for (const std::size_t size :
         {static_cast<std::size_t>(batch_size), sharding.nfl_offset().size(),
          sharding.feature_offset().size(), sharding.fid_offset().size()}) {
      Emit(ctx, output++, std::vector<std::int32_t>{static_cast<std::int32_t>(size)});
    }
    Emit(ctx, output, sharding.emb_size());
  }

  core::LayoutConfig config_;

 private:
  template <typename T>
  static void Emit(tf::OpKernelContext* ctx, int index, const std::vector<T>& values) {
    tf::Tensor* tensor = nullptr;
    const auto size = static_cast<std::int64_t>(values.size());
    OP_REQUIRES_OK(ctx, ctx->allocate_output(index, tf::TensorShape({size}), &tensor));
    std::copy(values.begin(), values.end(), tensor->flat<T>().data());
  }

  std::int64_t num_lists_ = 0;
  std::int64_t num_servers_ = 0;
  bool unique_ = false;
  std::vector<std::string> sub_tables_;
};

class ShardRaggedFidsOp final : public ShardFidsKernel {
 public:
  explicit ShardRaggedFidsOp(tf::OpKernelConstruction* ctx) : ShardFidsKernel(ctx) {}

  void Compute(tf::OpKernelContext* ctx) override {
    tf::OpInputList fids;
    tf::OpInputList row_splits;
    OP_REQUIRES_OK(ctx, ctx->input_list("fids", &fids));
    OP_REQUIRES_OK(ctx, ctx->input_list("row_splits", &row_splits));
    std::vector<core::FeatureIds> features;
    for (int i = 0; i < fids.size(); ++i) {
      OP_REQUIRES(ctx, row_splits[i].NumElements() > 0,
                  absl::InvalidArgumentError(
                      absl::StrCat("`row_splits` ", i,
                                   " must have at least one element, the start of the first "
                                   "row, but is empty.")));
      core::FeatureIds feature;
      feature.ids = View(fids[i]);
      feature.splits = View(row_splits[i]);
      features.push_back(feature);
    }
    const std::int64_t batch_size = row_splits[0].NumElements() - 1;
    OP_REQUIRES_OK(ctx, Guard([&] { Shard(ctx, features, batch_size); }));
  }

 private:
  static core::ArrayView<std::int64_t> View(const tf::Tensor& tensor) {
    return {tensor.flat<std::int64_t>().data(), static_cast<std::size_t>(tensor.NumElements())};
  }
};

class ShardSerializedFidsOp final : public ShardFidsKernel {
 public:
  explicit ShardSerializedFidsOp(tf::OpKernelConstruction* ctx) : ShardFidsKernel(ctx) {
    std::string input_type;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("input_type", &input_type));
    OP_REQUIRES_OK(ctx, Guard([&] { format_ = core::ParseExampleFormat(input_type); }));
  }

  void Compute(tf::OpKernelContext* ctx) override {
    std::vector<std::string_view> messages;
    for (const tf::tstring& message : Flat<tf::tstring>(ctx->input(0))) {
      messages.emplace_back(message.data(), message.size());
    }
    OP_REQUIRES_OK(ctx, Guard([&] {
                     const core::SerializedIds ids(config_, format_, messages);
                     Shard(ctx, ids.features(), ids.batch_size());
                   }));
  }

 private:
  core::ExampleFormat format_ = core::ExampleFormat::kExample;
};

REGISTER_KERNEL_BUILDER(Name("MonolithShardRaggedFids").Device(tf::DEVICE_CPU), ShardRaggedFidsOp);
REGISTER_KERNEL_BUILDER(Name("MonolithShardSerializedFids").Device(tf::DEVICE_CPU),
                        ShardSerializedFidsOp);

}  // namespace
}  // namespace monolith::ops
