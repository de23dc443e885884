// Ops that serve many tables, for several shards of workers, in one request.
//
// With K tables and N shards the ids come in K * N blocks, shard by shard: block n * K + k holds
// the ids that shard n has for table k, and `fused_slot_size` says how many. Rows leave in the same
// order.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "ops/system/parallel.h"
#include "ops/system/sizes.h"
#include "ops/system/status_guard.h"
#include "ops/table/lookup_counts.h"
#include "ops/table/table_calls.h"
#include "ops/table/table_set.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace monolith::ops {
namespace {

namespace tf = tensorflow;
namespace shapes = tensorflow::shape_inference;

// `num_tables` is negative where the handle hides it.
absl::Status FusedLookupShape(shapes::InferenceContext* c, std::int64_t num_tables) {
  const int first = c->num_inputs() - 3;  // ids, fused_slot_size, req_time
  std::int64_t num_shards = 0;
  TF_RETURN_IF_ERROR(c->GetAttr("num_of_shards", &num_shards));
  TF_RETURN_IF_ERROR(CheckShards(num_shards));
  shapes::ShapeHandle sizes;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(first + 1), 1, &sizes));
  shapes::DimensionHandle blocks = c->Dim(sizes, 0);
  if (num_tables >= 0) {
    TF_RETURN_IF_ERROR(c->WithValue(blocks, SizeProduct(num_tables, num_shards), &blocks));
  }
  shapes::DimensionHandle offsets;
  TF_RETURN_IF_ERROR(c->Add(blocks, 1, &offsets));
  c->set_output(0, c->UnknownShapeOfRank(1));
  c->set_output(1, c->Vector(num_shards));
  c->set_output(2, c->Vector(offsets));
  c->set_output(3, c->Vector(offsets));
  c->set_output(4, c->Vector(c->NumElements(c->input(first))));
  return absl::OkStatus();
}

REGISTER_OP("MonolithHashTableFusedLookup")
    .Input("table_handles: N * resource")
    .Input("ids: int64")
    .Input("fused_slot_size: int32")
    .Input("req_time: int64")
    .Output("embeddings: float")
    .Output("embedding_splits: int32")
    .Output("id_offsets: int32")
    .Output("embedding_offsets: int32")
    .Output("indices: int64")
    .Attr("N: int >= 1")
    .Attr("num_of_shards: int >= 1")
    .SetIsStateful()
    .SetShapeFn([](shapes::InferenceContext* c) {
      return FusedLookupShape(c, c->num_inputs() - 3);
    })
    .Doc(R"doc(
Looks up the ids of N tables for several shards in one call. Block `n * N + k` of `ids` holds what
shard n asks of table k; rows come in the same order.
)doc");

REGISTER_OP("MonolithMultiHashTableFusedLookup")
    .Input("mtable: resource")
    .Input("ids: int64")
    .Input("fused_slot_size: int32")
    .Input("req_time: int64")
    .Output("embeddings: float")
    .Output("embedding_splits: int32")
    .Output("id_offsets: int32")
    .Output("embedding_offsets: int32")
    .Output("indices: int64")
    .Attr("num_of_shards: int >= 1")
    .SetIsStateful()
    .SetShapeFn([](shapes::InferenceContext* c) { return FusedLookupShape(c, -1); })
    .Doc(R"doc(
Looks up the ids of all tables of a set for several shards in one call. With K tables, block `n * K
+ k` of `ids` holds what shard n asks of table k; rows come in the same order.
)doc");

REGISTER_OP("MonolithHashTableFusedOptimize")
    .Input("table_handles: N * resource")
    .Input("ids: int64")
    .Input("indices: int64")
    .Input("fused_slot_size: int32")
    .Input("id_grads: float")
    .Input("id_offsets: int32")
    .Input("grad_offsets: int32")
    .Input("learning_rate_tensors: float")
    .Input("req_time: int64")
    .Input("global_step: int64")
    .Output("table_handles_output: N * resource")
    .Attr("N: int >= 1")
    .Attr("num_of_shards: int >= 1")
    .Attr("enable_grad_accumulation: bool = false")
    .SetIsStateful()
    .SetShapeFn([](shapes::InferenceContext* c) {
      for (int i = 0; i < c->num_outputs(); ++i) c->set_output(i, c->Scalar());
      return absl::OkStatus();
    })
    .Doc(R"doc(
Takes one optimizer step in N tables with the gradients of several shards, laid out as
MonolithHashTableFusedLookup gave the rows. `enable_grad_accumulation` sums the gradients of equal
ids first.
)doc");

REGISTER_OP("MonolithMultiHashTableFusedOptimize")
    .Input("mtable: resource")
    .Input("ids: int64")
    .Input("indices: int64")
    .Input("fused_slot_size: int32")
    .Input("id_grads: float")
    .Input("id_offsets: int32")
    .Input("grad_offsets: int32")
    .Input("learning_rate_tensors: float")
    .Input("req_time: int64")
    .Input("global_step: int64")
    .Output("updated_table: resource")
    .Attr("num_of_shards: int >= 1")
    .Attr("enable_grad_accumulation: bool = false")
    .SetIsStateful()
    .SetShapeFn(shapes::ScalarShape)
    .Doc(R"doc(
Takes one optimizer step in all tables of a set with the gradients of several shards, laid out as
MonolithMultiHashTableFusedLookup gave the rows. `enable_grad_accumulation` sums the gradients of
equal ids first.
)doc");

// One of the K tables of a call: a set of one, or one of the tables of a larger set.
struct FusedTable {
  const TableSet* set;
  std::size_t index_in_set;
  std::shared_ptr<core::EmbeddingTable> table;

  [[nodiscard]] const std::string& name() const { return set->table_names()[index_in_set]; }
};

// The tables behind the handles that come first among the inputs.
class FusedTables {
 public:
  absl::Status Find(tf::OpKernelContext* ctx, int num_handles) {
    for (int i = 0; i < num_handles; ++i) {
      sets_.emplace_back();
      TF_RETURN_IF_ERROR(GetTableSet(ctx, i, &sets_.back()));
      const TableSet& set = *sets_.back();
      const auto tables = set.tables();
      for (std::size_t t = 0; t < tables->size(); ++t) tables_.push_back({&set, t, (*tables)[t]});
      num_learning_rates_ += set.num_learning_rates();
    }
    return absl::OkStatus();
  }

  [[nodiscard]] std::size_t size() const { return tables_.size(); }
  [[nodiscard]] const FusedTable& operator[](std::size_t i) const { return tables_[i]; }
  [[nodiscard]] std::size_t num_learning_rates() const { return num_learning_rates_; }
  // For messages.
  [[nodiscard]] std::string names() const {
    if (tables_.empty()) return "set without tables";
    return absl::StrCat(tables_[0].name(), " and the other ", tables_.size() - 1);
  }

 private:
  std::vector<tf::core::RefCountPtr<TableSet>> sets_;
  std::vector<FusedTable> tables_;
  std::size_t num_learning_rates_ = 0;
};

// Blocks of one call, in order, with where they start in the flat ids and rows.
struct Blocks {
  std::vector<std::int64_t> first_id;   // [K * N + 1]
  std::vector<std::int64_t> first_row;  // [K * N + 1], in floats.

  [[nodiscard]] std::size_t size() const { return first_id.size() - 1; }
  [[nodiscard]] std::size_t num_ids(std::size_t block) const {
    return static_cast<std::size_t>(first_id[block + 1] - first_id[block]);
  }
};

absl::Status CutIntoBlocks(const FusedTables& tables, int num_shards, const tf::Tensor& sizes,
                           std::int64_t num_ids, Blocks* blocks) {
  const std::size_t expected = tables.size() * static_cast<std::size_t>(num_shards);
  if (static_cast<std::size_t>(sizes.NumElements()) != expected) {
    return absl::InvalidArgumentError(
        absl::StrCat("`fused_slot_size` must have ", expected, " elements (", tables.size(),
                     " tables x ", num_shards, " shards), got ", sizes.NumElements()));
  }
  blocks->first_id.assign(1, 0);
  blocks->first_row.assign(1, 0);
  for (std::size_t b = 0; b < expected; ++b) {
    const std::int32_t size = sizes.flat<std::int32_t>()(b);
    if (size < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("fused_slot_size[", b, "] is negative: ", size));
    }
    const auto dim = static_cast<std::int64_t>(tables[b % tables.size()].table->dim());
    blocks->first_id.push_back(SizeSum(blocks->first_id.back(), size));
    blocks->first_row.push_back(SizeSum(blocks->first_row.back(), SizeProduct(size, dim)));
  }
  if (blocks->first_id.back() != num_ids) {
    return absl::InvalidArgumentError(absl::StrCat(
        "`fused_slot_size` sums up to ", blocks->first_id.back(), " ids, but there are ", num_ids));
  }
  if (blocks->first_row.back() > std::numeric_limits<std::int32_t>::max()) {
    return absl::InvalidArgumentError(
        absl::StrCat("One fused call moves at most 2^31 - 1 floats, this one ",
                     blocks->first_row.back(), "; use a smaller batch."));
  }
  return absl::OkStatus();
}

// Runs `work(block)` over TensorFlow's threads and returns the first error, naming its table.
template <typename Work>
absl::Status ForEachBlock(tf::OpKernelContext* ctx, const FusedTables& tables, const Blocks& blocks,
                          Work&& work) {
  if (blocks.size() == 0) return absl::OkStatus();  // Of no tables.
  constexpr std::int64_t kCyclesPerId = 150;
  const std::int64_t ids_per_block =
      blocks.first_id.back() / static_cast<std::int64_t>(blocks.size()) + 1;
  std::vector<absl::Status> statuses(blocks.size());
  ParallelFor(ctx, static_cast<std::int64_t>(blocks.size()), ids_per_block * kCyclesPerId,
              [&](std::int64_t begin, std::int64_t end) {
                for (std::int64_t b = begin; b < end; ++b) {
                  if (blocks.num_ids(b) == 0) continue;
                  statuses[b] = NameTable(Guard([&] { work(static_cast<std::size_t>(b)); }),
                                          tables[b % tables.size()].name());
                }
              });
  for (const absl::Status& status : statuses) TF_RETURN_IF_ERROR(status);
  return absl::OkStatus();
}

// With one block there is nothing to spread but the block itself.
const core::Parallel* ThreadsFor(tf::OpKernelContext* ctx, const Blocks& blocks,
                                 const core::Parallel& parallel) {
  return blocks.size() == 1 && WorthThreads(ctx, blocks.num_ids(0), false) ? &parallel : nullptr;
}

class FusedLookupOp final : public tf::OpKernel {
 public:
  explicit FusedLookupOp(tf::OpKernelConstruction* ctx) : tf::OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("num_of_shards", &num_shards_));
    OP_REQUIRES_OK(ctx, CheckShards(num_shards_));
  }

  void Compute(tf::OpKernelContext* ctx) override {
    const int num_handles = ctx->num_inputs() - 3;
    FusedTables tables;
    OP_REQUIRES_OK(ctx, tables.Find(ctx, num_handles));
    const tf::Tensor& ids = ctx->input(num_handles);
    Blocks blocks;
    OP_REQUIRES_OK(ctx, CutIntoBlocks(tables, num_shards_, ctx->input(num_handles + 1),
                                      ids.NumElements(), &blocks));

    tf::Tensor* rows = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, tf::TensorShape({blocks.first_row.back()}), &rows));
    const core::Parallel parallel = OnAllThreads(ctx);
    const std::int64_t* flat_ids = ids.flat<std::int64_t>().data();
    float* flat_rows = rows->flat<float>().data();
    OP_REQUIRES_OK(ctx, ForEachBlock(ctx, tables, blocks, [&](std::size_t b) {
                     const std::size_t found = tables[b % tables.size()].table->Lookup(
                         flat_ids + blocks.first_id[b], blocks.num_ids(b),
                         flat_rows + blocks.first_row[b], ThreadsFor(ctx, blocks, parallel));
                     CountLookup(blocks.num_ids(b), found);
                   }));

    tf::Tensor* splits = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(1, tf::TensorShape({num_shards_}), &splits));
    for (int n = 0; n < num_shards_; ++n) {
      splits->flat<std::int32_t>()(n) = static_cast<std::int32_t>(
          blocks.first_row[(n + 1) * tables.size()] - blocks.first_row[n * tables.size()]);
    }
    OP_REQUIRES_OK(ctx, OutputOffsets(ctx, 2, blocks.first_id));
    OP_REQUIRES_OK(ctx, OutputOffsets(ctx, 3, blocks.first_row));
    tf::Tensor flat;
    OP_REQUIRES(ctx, flat.CopyFrom(ids, tf::TensorShape({ids.NumElements()})),
                absl::InternalError("`ids` could not be reshaped."));
    ctx->set_output(4, flat);
  }

 private:
  static absl::Status OutputOffsets(tf::OpKernelContext* ctx, int output,
                                    const std::vector<std::int64_t>& offsets) {
    tf::Tensor* tensor = nullptr;
    TF_RETURN_IF_ERROR(ctx->allocate_output(
        output, tf::TensorShape({static_cast<std::int64_t>(offsets.size())}), &tensor));
    for (std::size_t i = 0; i < offsets.size(); ++i) {
      tensor->flat<std::int32_t>()(i) = static_cast<std::int32_t>(offsets[i]);
    }
    return absl::OkStatus();
  }

  int num_shards_ = 0;
};

class FusedOptimizeOp final : public tf::OpKernel {
 public:
  explicit FusedOptimizeOp(tf::OpKernelConstruction* ctx) : tf::OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("num_of_shards", &num_shards_));
    OP_REQUIRES_OK(ctx, CheckShards(num_shards_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("enable_grad_accumulation", &enable_grad_accumulation_));
  }

  void Compute(tf::OpKernelContext* ctx) override {
    const int num_handles = ctx->num_inputs() - 9;
    FusedTables tables;
    OP_REQUIRES_OK(ctx, tables.Find(ctx, num_handles));
    const tf::Tensor& ids = ctx->input(num_handles);
    const tf::Tensor& grads = ctx->input(num_handles + 3);
    const tf::Tensor& learning_rates = ctx->input(num_handles + 6);
    Blocks blocks;
    OP_REQUIRES_OK(ctx, CutIntoBlocks(tables, num_shards_, ctx->input(num_handles + 2),
                                      ids.NumElements(), &blocks));
    OP_REQUIRES_OK(ctx, CheckOffsets("id_offsets", ctx->input(num_handles + 4), blocks.first_id));
    OP_REQUIRES_OK(ctx,
                   CheckOffsets("grad_offsets", ctx->input(num_handles + 5), blocks.first_row));
    OP_REQUIRES(
        ctx, grads.NumElements() == blocks.first_row.back(),
        absl::InvalidArgumentError(absl::StrCat("`id_grads` must have ", blocks.first_row.back(),
                                                " floats, got ", grads.NumElements())));
    OP_REQUIRES_OK(ctx,
                   CheckLearningRates(learning_rates, tables.num_learning_rates(), tables.names()));
    UpdateArguments arguments;
    OP_REQUIRES_OK(ctx,
                   ReadNonNegative(ctx, num_handles + 7, "req_time", &arguments.update_time_sec));
    OP_REQUIRES_OK(ctx,
                   ReadNonNegative(ctx, num_handles + 8, "global_step", &arguments.global_step));
    arguments.sum_equal_ids = enable_grad_accumulation_;

    std::vector<const float*> rates_of_table;
    const float* next_rate = learning_rates.flat<float>().data();
    for (std::size_t t = 0; t < tables.size(); ++t) {
      OP_REQUIRES_OK(ctx, CheckForTraining(*tables[t].set));
      rates_of_table.push_back(next_rate);
      next_rate += tables[t].table->accessor().num_segments();
    }
    const core::Parallel parallel = OnAllThreads(ctx);
    OP_REQUIRES_OK(ctx, ForEachBlock(ctx, tables, blocks, [&](std::size_t b) {
                     const std::size_t t = b % tables.size();
                     Optimize(*tables[t].set, tables[t].index_in_set, *tables[t].table,
                              ids.flat<std::int64_t>().data() + blocks.first_id[b],
                              blocks.num_ids(b), grads.flat<float>().data() + blocks.first_row[b],
                              rates_of_table[t], arguments, ThreadsFor(ctx, blocks, parallel));
                   }));
    for (int i = 0; i < num_handles; ++i) ctx->set_output(i, ctx->input(i));
  }

 private:
  // The offsets are the lookup's own, handed back; others would address foreign rows.
  static absl::Status CheckOffsets(const char* name, const tf::Tensor& given,
                                   const std::vector<std::int64_t>& expected) {
    bool same = static_cast<std::size_t>(given.NumElements()) == expected.size();
    for (std::size_t i = 0; same && i < expected.size(); ++i) {
      same = given.flat<std::int32_t>()(i) == expected[i];
    }
    if (same) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        "`", name, "` does not fit `fused_slot_size`; pass what the fused lookup returned."));
  }

  int num_shards_ = 0;
  bool enable_grad_accumulation_ = false;
};

REGISTER_KERNEL_BUILDER(Name("MonolithHashTableFusedLookup").Device(tf::DEVICE_CPU), FusedLookupOp);
REGISTER_KERNEL_BUILDER(Name("MonolithMultiHashTableFusedLookup").Device(tf::DEVICE_CPU),
                        FusedLookupOp);
REGISTER_KERNEL_BUILDER(Name("MonolithHashTableFusedOptimize").Device(tf::DEVICE_CPU),
                        FusedOptimizeOp);
REGISTER_KERNEL_BUILDER(Name("MonolithMultiHashTableFusedOptimize").Device(tf::DEVICE_CPU),
                        FusedOptimizeOp);

}  // namespace
}  // namespace monolith::ops
