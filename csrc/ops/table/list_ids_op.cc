// Which ids a table has, part by part, for who keeps a server up to date.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "ops/system/status_guard.h"
#include "ops/system/tensor_checks.h"
#include "ops/table/table_set.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace monolith::ops {
namespace {

namespace tf = tensorflow;
namespace shapes = tensorflow::shape_inference;

// Ids that are listed in one call: 2 MiB.
constexpr std::int64_t kMostIds = std::int64_t{1} << 18;
// Places that are looked at in one call: those of a table whose rows are gone may be empty, and
// each costs a cache miss.
constexpr std::uint64_t kMostPlaces = std::uint64_t{1} << 20;
constexpr std::int64_t kNoMore = -1;

REGISTER_OP("MonolithTableListIds")
    .Input("handle: resource")
    .Input("table: int64")
    .Input("place: int64")
    .Input("max_ids: int64")
    .Output("id: int64")
    .Output("next_place: int64")
    .SetIsStateful()
    .SetShapeFn([](shapes::InferenceContext* c) {
      shapes::ShapeHandle unused;
      for (int i = 1; i < 4; ++i) TF_RETURN_IF_ERROR(c->WithRank(c->input(i), 0, &unused));
      c->set_output(0, c->UnknownShapeOfRank(1));
      c->set_output(1, c->Scalar());
      return absl::OkStatus();
    })
    .Doc(R"doc(
Returns ids that have a row in table number `table` of a set, or in a single table, which is number
0: those of the rows from `place` on, first 0, at most `max_ids` of them, and maybe none; and the
place to go on from, or -1 if there are no more. Whoever goes on until then gets each id once whose
row stays meanwhile. `max_ids` is at most 262144.
)doc");

class ListIdsOp final : public tf::OpKernel {
 public:
  using tf::OpKernel::OpKernel;

  void Compute(tf::OpKernelContext* ctx) override {
    tf::core::RefCountPtr<TableSet> set;
    OP_REQUIRES_OK(ctx, GetTableSet(ctx, 0, &set));
    absl::Status status;
    const absl::Status guarded = Guard([&] { status = List(ctx, *set); });
    OP_REQUIRES_OK(ctx, guarded);
    OP_REQUIRES_OK(ctx, status);
  }

 private:
  static absl::Status List(tf::OpKernelContext* ctx, const TableSet& set) {
    const auto tables = set.tables();
    const auto num_tables = static_cast<std::int64_t>(tables->size());
    std::int64_t table = 0, place = 0, max_ids = 0;
    TF_RETURN_IF_ERROR(ReadBetween(ctx, 1, "table", 0, num_tables - 1, &table));
    TF_RETURN_IF_ERROR(
        ReadBetween(ctx, 2, "place", 0, std::numeric_limits<std::int64_t>::max(), &place));
    TF_RETURN_IF_ERROR(ReadBetween(ctx, 3, "max_ids", 1, kMostIds, &max_ids));
    const core::EmbeddingTable& listed = *(*tables)[table];
    const auto first = static_cast<std::uint64_t>(place);
    const std::uint64_t end = listed.num_places();
    std::vector<std::int64_t> ids;
    std::uint64_t next = end;
    if (first < end) {
      next = listed.ListIds(first, std::min(end, first + kMostPlaces),
                            static_cast<std::size_t>(max_ids), &ids);
    }
    tf::Tensor* id = nullptr;
    tf::Tensor* next_place = nullptr;
    TF_RETURN_IF_ERROR(
        ctx->allocate_output(0, tf::TensorShape({static_cast<std::int64_t>(ids.size())}), &id));
    TF_RETURN_IF_ERROR(ctx->allocate_output(1, tf::TensorShape({}), &next_place));
    std::copy(ids.begin(), ids.end(), id->vec<std::int64_t>().data());
    next_place->scalar<std::int64_t>()() = next >= end ? kNoMore : static_cast<std::int64_t>(next);
    return absl::OkStatus();
  }

  static absl::Status ReadBetween(tf::OpKernelContext* ctx, int index, const char* name,
                                  std::int64_t least, std::int64_t most, std::int64_t* value) {
    TF_RETURN_IF_ERROR(CheckRank(ctx->input(index), name, 0));
    *value = ctx->input(index).scalar<std::int64_t>()();
    if (*value >= least && *value <= most) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("`", name, "` must be in [", least, ", ", most, "], got ", *value, "."));
  }
};

REGISTER_KERNEL_BUILDER(Name("MonolithTableListIds").Device(tf::DEVICE_CPU), ListIdsOp);

}  // namespace
}  // namespace monolith::ops
