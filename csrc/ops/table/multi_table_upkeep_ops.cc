// What each table of a set holds, and the removal of rows that have expired.
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "ops/system/status_guard.h"
#include "ops/table/table_set.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace monolith::ops {
namespace {

namespace tf = tensorflow;
namespace shapes = tensorflow::shape_inference;

REGISTER_OP("MonolithMultiHashTableSize")
    .Input("mtable: resource")
    .Output("sizes: int64")
    .SetIsStateful()
    .SetShapeFn([](shapes::InferenceContext* c) {
      c->set_output(0, c->UnknownShapeOfRank(1));
      return absl::OkStatus();
    })
    .Doc("Returns how many rows each table of a set has.");

REGISTER_OP("MonolithMultiHashTableStats")
    .Input("mtable: resource")
    .Output("rows: int64")
    .Output("row_bytes: int64")
    .Output("index_bytes: int64")
    .Output("admitted: int64")
    .Output("expired: int64")
    .Output("held_back: int64")
    .SetIsStateful()
    .SetShapeFn([](shapes::InferenceContext* c) {
      for (int i = 0; i < c->num_outputs(); ++i) c->set_output(i, c->UnknownShapeOfRank(1));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Returns of each table of a set, or of a single table, how many rows it has; the bytes of memory for
rows, with places that are free to be used again, and for the index that finds them. And since the
process began: how many rows updates have made, not counting those that a restore has brought; how
many have been removed because they had expired, not counting those that a save leaves out and that
stay in memory; and how often an update got no row for an id because the filter held it back.
)doc");

REGISTER_OP("MonolithMultiHashTableEvict")
    .Input("mtable: resource")
    .Input("max_update_time: int64")
    .Output("updated_table: resource")
    .Output("evicted: int64")
    .SetIsStateful()
    .SetShapeFn([](shapes::InferenceContext* c) {
      shapes::ShapeHandle unused;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 0, &unused));
      c->set_output(0, c->Scalar());
      c->set_output(1, c->UnknownShapeOfRank(1));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Removes from each table of a set the rows that have expired at `max_update_time`, or, if that is -1,
at the table's newest update, by the expire times of the table's config; returns how many of each.
)doc");

// One number for each table, in the order of the set.
absl::Status AllocateNumbers(tf::OpKernelContext* ctx, int output, std::size_t num_tables,
                             std::int64_t** numbers) {
  tf::Tensor* tensor = nullptr;
  TF_RETURN_IF_ERROR(ctx->allocate_output(
      output, tf::TensorShape({static_cast<std::int64_t>(num_tables)}), &tensor));
  *numbers = tensor->vec<std::int64_t>().data();
  return absl::OkStatus();
}

class MultiSizeOp final : public tf::OpKernel {
 public:
  using tf::OpKernel::OpKernel;

  void Compute(tf::OpKernelContext* ctx) override {
    tf::core::RefCountPtr<TableSet> set;
    OP_REQUIRES_OK(ctx, GetTableSet(ctx, 0, &set));
    const auto kept = set->tables();
    const TableSet::Tables& tables = *kept;
    std::int64_t* sizes = nullptr;
    OP_REQUIRES_OK(ctx, AllocateNumbers(ctx, 0, tables.size(), &sizes));
    for (std::size_t i = 0; i < tables.size(); ++i) {
      sizes[i] = static_cast<std::int64_t>(tables[i]->size());
    }
  }
};

class MultiStatsOp final : public tf::OpKernel {
 public:
  using tf::OpKernel::OpKernel;

  void Compute(tf::OpKernelContext* ctx) override {
    tf::core::RefCountPtr<TableSet> set;
    OP_REQUIRES_OK(ctx, GetTableSet(ctx, 0, &set));
    const std::vector<core::TableStats> stats = set->Stats();
    for (int output = 0; output < ctx->num_outputs(); ++output) {
      std::int64_t* numbers = nullptr;
      OP_REQUIRES_OK(ctx, AllocateNumbers(ctx, output, stats.size(), &numbers));
      for (std::size_t i = 0; i < stats.size(); ++i) {
        const core::TableStats& s = stats[i];
        const std::uint64_t by_output[] = {s.rows,     s.row_bytes, s.index_bytes,
                                           s.admitted, s.expired,   s.held_back};
        numbers[i] = static_cast<std::int64_t>(by_output[output]);
      }
    }
  }
};

class MultiEvictOp final : public tf::OpKernel {
 public:
  using tf::OpKernel::OpKernel;

  void Compute(tf::OpKernelContext* ctx) override {
    tf::core::RefCountPtr<TableSet> set;
    OP_REQUIRES_OK(ctx, GetTableSet(ctx, 0, &set));
    const tf::Tensor& time = ctx->input(1);
    OP_REQUIRES(ctx, tf::TensorShapeUtils::IsScalar(time.shape()),
                absl::InvalidArgumentError(absl::StrCat("`max_update_time` must be a scalar, got ",
                                                        "shape ", time.shape().DebugString())));
    const std::int64_t max_update_sec = time.scalar<std::int64_t>()();
    OP_REQUIRES(ctx, max_update_sec >= kNewestUpdate,
                absl::InvalidArgumentError(absl::StrCat(
                    "`max_update_time` must be a time, or -1 for the newest update of each table, "
                    "got ",
                    max_update_sec)));
    const auto kept = set->tables();
    const TableSet::Tables& tables = *kept;
    std::int64_t* evicted = nullptr;
    OP_REQUIRES_OK(ctx, AllocateNumbers(ctx, 1, tables.size(), &evicted));
    OP_REQUIRES_OK(ctx, Guard([&] {
                     for (std::size_t i = 0; i < tables.size(); ++i) {
                       const std::int64_t at = max_update_sec == kNewestUpdate
                                                   ? tables[i]->max_update_sec()
                                                   : max_update_sec;
                       evicted[i] = static_cast<std::int64_t>(EvictRows(*set, i, *tables[i], at));
                     }
                   }));
    ctx->set_output(0, ctx->input(0));
  }

 private:
  static constexpr std::int64_t kNewestUpdate = -1;
};

REGISTER_KERNEL_BUILDER(Name("MonolithMultiHashTableSize").Device(tf::DEVICE_CPU), MultiSizeOp);
REGISTER_KERNEL_BUILDER(Name("MonolithMultiHashTableStats").Device(tf::DEVICE_CPU), MultiStatsOp);
REGISTER_KERNEL_BUILDER(Name("MonolithMultiHashTableEvict").Device(tf::DEVICE_CPU), MultiEvictOp);

}  // namespace
}  // namespace monolith::ops
