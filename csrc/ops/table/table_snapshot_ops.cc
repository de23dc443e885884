// Ops that bring tables to disk and back, or hand out their rows as tensors.
#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/table/table_config.h"
#include "core/wire/entry_dump.h"
#include "ops/system/status_guard.h"
#include "ops/table/snapshot_op.h"
#include "ops/table/table_restore.h"
#include "ops/table/table_set.h"
#include "ops/table/table_snapshot.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace monolith::ops {
namespace {

namespace tf = tensorflow;
namespace shapes = tensorflow::shape_inference;

REGISTER_OP("MonolithHashTableSave")
    .Input("handle: resource")
    .Input("basename: string")
    .Output("output_handle: resource")
    .Attr("nshards: int = -1")
    .Attr("random_sleep_ms: int = 0")
    .Attr("slot_expire_time_config: string = ''")
    .SetIsStateful()
    .SetShapeFn(shapes::ScalarShape)
    .Doc(R"doc(
Writes the rows of the table to `nshards` files of `basename`, or as many as suit its size if that
is -1, without those that have expired, by `slot_expire_time_config`, at the newest update of the
table.
)doc");

REGISTER_OP("MonolithHashTableRestore")
    .Input("handle: resource")
    .Input("basename: string")
    .Output("output_handle: resource")
    .SetIsStateful()
    .SetShapeFn(shapes::ScalarShape)
    .Doc("Replaces the rows of the table by those that MonolithHashTableSave wrote.");

REGISTER_OP("MonolithMultiHashTableSave")
    .Input("mtable: resource")
    .Input("basename: string")
    .Output("output_mtable: resource")
    .Attr("nshards: int = -1")
    .Attr("slot_expire_time_config: string = ''")
    .SetIsStateful()
    .SetShapeFn(shapes::ScalarShape)
    .Doc(R"doc(
Writes the rows of all tables of a set to `nshards` files of `basename`, or as many as suit their
size if that is -1, without those that have expired at the newest update of their table, by
`slot_expire_time_config` or, where that is empty, by the expire times of each table's own config.
)doc");

REGISTER_OP("MonolithMultiHashTableRestore")
    .Input("mtable: resource")
    .Input("basename: string")
    .Output("output_mtable: resource")
    .SetIsStateful()
    .SetShapeFn(shapes::ScalarShape)
    .Doc("Reads what MonolithMultiHashTableSave wrote; rows that are only in memory stay.");

REGISTER_OP("MonolithMultiHashTableFeatureStat")
    .Input("basename: string")
    .Output("features: string")
    .Output("counts: uint64")
    .SetIsStateful()
    .SetShapeFn([](shapes::InferenceContext* c) {
      c->set_output(0, c->UnknownShapeOfRank(1));
      c->set_output(1, c->UnknownShapeOfRank(1));
      return absl::OkStatus();
    })
    .Doc("Returns the names of the tables in a snapshot, and how many rows of each it holds.");

REGISTER_OP("MonolithHashTableSaveAsTensor")
    .Input("table_handle: resource")
    .Input("shard_idx: int32")
    .Input("num_shards: int32")
    .Input("limit: int64")
    .Input("offset: int64")
    .Output("new_offset: int64")
    .Output("entry: string")
    .SetIsStateful()
    .SetShapeFn([](shapes::InferenceContext* c) {
      c->set_output(0, c->Scalar());
      c->set_output(1, c->UnknownShapeOfRank(1));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Returns at most `limit` rows of a shard of the table as serialized EntryDumps, and the offset to go
on from; the first offset is 0.
)doc");

REGISTER_OP("MonolithExtractSlotFromEntry")
    .Input("entry: string")
    .Output("slot: int32")
    .Attr("fid_v2: bool")
    .SetShapeFn(shapes::UnchangedShape)
    .Doc("Returns the slot of the id of each serialized EntryDump.");

class SaveOp final : public FileOp {
 public:
  explicit SaveOp(tf::OpKernelConstruction* ctx)
      : FileOp(ctx),
        multi_(ctx->def().op() == "MonolithMultiHashTableSave"),
        compression_(multi_ ? "SNAPPY" : "") {
    std::int64_t num_shards = 0;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("nshards", &num_shards));
    OP_REQUIRES(
        ctx, (num_shards == -1 || num_shards > 0) && num_shards <= std::numeric_limits<int>::max(),
        absl::InvalidArgumentError(absl::StrCat(
            "nshards must be a positive number, or -1 to choose by size; got ", num_shards)));
    options_.num_shards = static_cast<int>(num_shards);
    if (!multi_) {
      OP_REQUIRES_OK(ctx, ctx->GetAttr("random_sleep_ms", &options_.random_sleep_ms));
      OP_REQUIRES(ctx, options_.random_sleep_ms >= 0 && options_.random_sleep_ms <= kMostSleepMs,
                  absl::InvalidArgumentError(absl::StrCat("random_sleep_ms must be between 0 and ",
                                                          kMostSleepMs, ", an hour; got ",
                                                          options_.random_sleep_ms)));
    }
    OP_REQUIRES_OK(ctx, ReadExpireTimes(ctx, multi_, &options_.expire_times));
  }

 private:
  absl::Status Run(tf::OpKernelContext* ctx) override {
    tf::core::RefCountPtr<TableSet> set;
    TF_RETURN_IF_ERROR(GetTableSet(ctx, 0, &set));
    std::string basename;
    TF_RETURN_IF_ERROR(ReadBasename(ctx, 1, &basename));
    ctx->set_output(0, ctx->input(0));
    return SaveTables(ctx->env(), *set, basename, compression_, options_);
  }

  static constexpr std::int64_t kMostSleepMs = 60 * 60 * 1000;

  const bool multi_;
  const std::string compression_;
  SaveOptions options_;
};

class RestoreOp final : public FileOp {
 public:
  explicit RestoreOp(tf::OpKernelConstruction* ctx) : FileOp(ctx) {
    if (ctx->def().op() != "MonolithMultiHashTableRestore") return;
    options_.compression = "SNAPPY";
    options_.mode = RestoreMode::kKeep;
  }

 private:
  absl::Status Run(tf::OpKernelContext* ctx) override {
    tf::core::RefCountPtr<TableSet> set;
    TF_RETURN_IF_ERROR(GetTableSet(ctx, 0, &set));
    std::string basename;
    TF_RETURN_IF_ERROR(ReadBasename(ctx, 1, &basename));
    ctx->set_output(0, ctx->input(0));
    return RestoreTables(ctx->env(), *set, {{basename}}, options_);
  }

  RestoreOptions options_;
};

class FeatureStatOp final : public FileOp {
 public:
  using FileOp::FileOp;

 private:
  absl::Status Run(tf::OpKernelContext* ctx) override {
    std::string basename;
    TF_RETURN_IF_ERROR(ReadBasename(ctx, 0, &basename));
    std::vector<TableRows> tables;
    TF_RETURN_IF_ERROR(CountSavedRows(ctx->env(), basename, &tables));
    const tf::TensorShape shape({static_cast<std::int64_t>(tables.size())});
    tf::Tensor* features = nullptr;
    tf::Tensor* counts = nullptr;
    TF_RETURN_IF_ERROR(ctx->allocate_output(0, shape, &features));
    TF_RETURN_IF_ERROR(ctx->allocate_output(1, shape, &counts));
    for (std::size_t i = 0; i < tables.size(); ++i) {
      features->flat<tf::tstring>()(i) = tables[i].table;
      counts->flat<std::uint64_t>()(i) = tables[i].rows;
    }
    return absl::OkStatus();
  }
};

// Offsets count places of the shard, plus one: a returned offset is never 0, the start.
class SaveAsTensorOp final : public tf::OpKernel {
 public:
  using tf::OpKernel::OpKernel;

  void Compute(tf::OpKernelContext* ctx) override {
    tf::core::RefCountPtr<TableSet> set;
    OP_REQUIRES_OK(ctx, GetTableSet(ctx, 0, &set));
    OP_REQUIRES(ctx, set->size() == 1 && set->is_for_training(),
                absl::InvalidArgumentError(
                    absl::StrCat(set->name(), " is not a single table for training.")));
    constexpr const char* kNames[] = {"shard_idx", "num_shards", "limit", "offset"};
    for (int i = 0; i < 4; ++i) {
      OP_REQUIRES(
          ctx, ctx->input(i + 1).NumElements() == 1,
          absl::InvalidArgumentError(absl::StrCat("`", kNames[i], "` must be a scalar, got shape ",
                                                  ctx->input(i + 1).shape().DebugString())));
    }
    const std::int64_t shard = ctx->input(1).flat<std::int32_t>()(0);
    const std::int64_t num_shards = ctx->input(2).flat<std::int32_t>()(0);
    const std::int64_t limit = ctx->input(3).flat<std::int64_t>()(0);
    const std::int64_t offset = ctx->input(4).flat<std::int64_t>()(0);
    OP_REQUIRES(ctx, shard >= 0 && shard < num_shards,
                absl::InvalidArgumentError(absl::StrCat(
                    "shard_idx must be in [0, num_shards), got ", shard, " of ", num_shards)));
    OP_REQUIRES(ctx, limit >= 0 && offset >= 0,
                absl::InvalidArgumentError(absl::StrCat(
                    "limit and offset must not be negative, got ", limit, " and ", offset)));

    const std::shared_ptr<core::EmbeddingTable> table = set->tables()->front();
    // Places are dealt out block by block, so that a growing table does not shift the shards.
    core::DumpedRows dumped;
    std::uint64_t next = offset == 0 ? 0 : static_cast<std::uint64_t>(offset - 1);
    OP_REQUIRES_OK(
        ctx, Guard([&] { next = DumpShard(*table, shard, num_shards, limit, next, &dumped); }));
    tf::Tensor* new_offset = nullptr;
    tf::Tensor* entries = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, tf::TensorShape({}), &new_offset));
    OP_REQUIRES_OK(
        ctx, ctx->allocate_output(1, tf::TensorShape({static_cast<std::int64_t>(dumped.size())}),
                                  &entries));
    new_offset->scalar<std::int64_t>()() = static_cast<std::int64_t>(next) + 1;
    for (std::size_t i = 0; i < dumped.size(); ++i) {
      entries->flat<tf::tstring>()(i).assign(dumped[i].data(), dumped[i].size());
    }
  }

 private:
  // `next` is a place of the table that lies in the shard, or its start.
  static std::uint64_t DumpShard(const core::EmbeddingTable& table, std::int64_t shard,
                                 std::int64_t num_shards, std::int64_t limit, std::uint64_t next,
                                 core::DumpedRows* dumped) {
    constexpr std::uint64_t kBlock = core::RowStore::kBlockRows;
    const auto step = static_cast<std::uint64_t>(num_shards);
    if (next / kBlock % step != static_cast<std::uint64_t>(shard)) {
      next = static_cast<std::uint64_t>(shard) * kBlock;
    }
    while (next < table.num_places() && dumped->size() < static_cast<std::size_t>(limit)) {
      const std::uint64_t block_end = (next / kBlock + 1) * kBlock;
      next = table.Dump(next, block_end, static_cast<std::size_t>(limit) - dumped->size(), nullptr,
                        dumped);
      if (next == block_end) next += (step - 1) * kBlock;
    }
    return next;
  }
};

class ExtractSlotFromEntryOp final : public tf::OpKernel {
 public:
  explicit ExtractSlotFromEntryOp(tf::OpKernelConstruction* ctx) : tf::OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("fid_v2", &fid_v2_));
  }

  void Compute(tf::OpKernelContext* ctx) override {
    const tf::Tensor& entries = ctx->input(0);
    tf::Tensor* slots = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, entries.shape(), &slots));
    const auto records = entries.flat<tf::tstring>();
    for (Eigen::Index i = 0; i < records.size(); ++i) {
      core::EntryDumpView dump;
      OP_REQUIRES(
          ctx,
          core::ParseEntryDump(std::string_view(records(i).data(), records(i).size()), &dump) &&
              dump.has_id,
          absl::InvalidArgumentError(
              absl::StrCat("entry[", i, "] is not a serialized EntryDump with an id.")));
      slots->flat<std::int32_t>()(i) = static_cast<std::int32_t>(
          fid_v2_ ? core::SlotOf(dump.id) : static_cast<std::uint64_t>(dump.id) >> 54);
    }
  }

 private:
  bool fid_v2_ = true;
};

REGISTER_KERNEL_BUILDER(Name("MonolithHashTableSave").Device(tf::DEVICE_CPU), SaveOp);
REGISTER_KERNEL_BUILDER(Name("MonolithHashTableRestore").Device(tf::DEVICE_CPU), RestoreOp);
REGISTER_KERNEL_BUILDER(Name("MonolithMultiHashTableSave").Device(tf::DEVICE_CPU), SaveOp);
REGISTER_KERNEL_BUILDER(Name("MonolithMultiHashTableRestore").Device(tf::DEVICE_CPU), RestoreOp);
REGISTER_KERNEL_BUILDER(Name("MonolithMultiHashTableFeatureStat").Device(tf::DEVICE_CPU),
                        FeatureStatOp);
REGISTER_KERNEL_BUILDER(Name("MonolithHashTableSaveAsTensor").Device(tf::DEVICE_CPU),
                        SaveAsTensorOp);
REGISTER_KERNEL_BUILDER(Name("MonolithExtractSlotFromEntry").Device(tf::DEVICE_CPU),
                        ExtractSlotFromEntryOp);

}  // namespace
}  // namespace monolith::ops
