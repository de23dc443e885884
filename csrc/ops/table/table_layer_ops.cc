// Ops of incremental snapshots, and of those that another number of servers has written.
//
// A table remembers which rows change (Track); a save gathers their ids (Gather), writes the rows
// (SaveTouched) and, when they are safe, lets the table forget them (Forget). A full save gathers
// before it writes and lets forget afterwards, too. A restore reads the full snapshot and all that
// followed as layers (RestoreLayers).
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
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

REGISTER_OP("MonolithTableTrackTouched")
    .Input("table: resource")
    .Attr("capacity: int >= 1")
    .SetIsStateful()
    .SetShapeFn(shapes::NoOutputs)
    .Doc(R"doc(
From now on the tables of the handle remember which rows change, up to `capacity` ids a table.
)doc");

REGISTER_OP("MonolithTableGatherTouched")
    .Input("table: resource")
    .Output("num_ids: int64")
    .Output("complete: bool")
    .SetIsStateful()
    .SetShapeFn([](shapes::InferenceContext* c) {
      c->set_output(0, c->Scalar());
      c->set_output(1, c->Scalar());
      return absl::OkStatus();
    })
    .Doc(R"doc(
Collects the ids of the rows that changed, for MonolithTableSaveTouched. `complete` is false if
there were more than could be remembered; then only a full save will do.
)doc");

REGISTER_OP("MonolithTableSaveTouched")
    .Input("table: resource")
    .Input("basename: string")
    .Attr("compression: {'', 'SNAPPY'} = ''")
    .Attr("slot_expire_time_config: string = ''")
    .SetIsStateful()
    .SetShapeFn(shapes::NoOutputs)
    .Doc(R"doc(
Writes the rows whose ids were gathered to files of `basename`; an id without a row, or with one
that has expired, is written as removed. Several tables (`compression` SNAPPY) expire each by its own
config where `slot_expire_time_config` is empty.
)doc");

REGISTER_OP("MonolithTableForgetTouched")
    .Input("table: resource")
    .SetIsStateful()
    .SetShapeFn(shapes::NoOutputs)
    .Doc("Forgets the gathered ids, whose rows are safe on disk now.");

REGISTER_OP("MonolithTableRestoreLayers")
    .Input("table: resource")
    .Input("basenames: string")
    .Input("layers: int64")
    .Attr("compression: {'', 'SNAPPY'} = ''")
    .Attr("keep_other_rows: bool = false")
    .Attr("server: int >= 0 = 0")
    .Attr("num_servers: int >= 1 = 1")
    .SetIsStateful()
    .SetShapeFn(shapes::NoOutputs)
    .Doc(R"doc(
Reads a full snapshot (layer 0) and the incremental ones that followed it, in order. Of the rows,
server `server` of `num_servers` keeps its own; rows in memory that the layers lack go, unless
`keep_other_rows`.
)doc");

REGISTER_OP("MonolithTableRestoreChanged")
    .Input("table: resource")
    .Input("basenames: string")
    .Input("layers: int64")
    .Input("start_anew: string")
    .Input("keep_values: string")
    .Attr("compression: {'', 'SNAPPY'} = ''")
    .Attr("keep_other_rows: bool = false")
    .Attr("server: int >= 0 = 0")
    .Attr("num_servers: int >= 1 = 1")
    .SetIsStateful()
    .SetShapeFn(shapes::NoOutputs)
    .Doc(R"doc(
MonolithTableRestoreLayers for tables that have changed since they were saved. Of the tables whose
names are in `start_anew` no rows are read. Rows of those in `keep_values` get their values, and
fresh states of the optimizers that the table has now.
)doc");

class TrackTouchedOp final : public tf::OpKernel {
 public:
  explicit TrackTouchedOp(tf::OpKernelConstruction* ctx) : tf::OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("capacity", &capacity_));
  }

  void Compute(tf::OpKernelContext* ctx) override {
    tf::core::RefCountPtr<TableSet> set;
    OP_REQUIRES_OK(ctx, GetTableSet(ctx, 0, &set));
    OP_REQUIRES_OK(ctx, Guard([&] { set->TrackTouched(static_cast<std::size_t>(capacity_)); }));
  }

 private:
  std::int64_t capacity_ = 0;
};

class GatherTouchedOp final : public tf::OpKernel {
 public:
  using tf::OpKernel::OpKernel;

  void Compute(tf::OpKernelContext* ctx) override {
    tf::core::RefCountPtr<TableSet> set;
    OP_REQUIRES_OK(ctx, GetTableSet(ctx, 0, &set));
    tf::Tensor* num_ids = nullptr;
    tf::Tensor* complete = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, tf::TensorShape({}), &num_ids));
    OP_REQUIRES_OK(ctx, ctx->allocate_output(1, tf::TensorShape({}), &complete));
    num_ids->scalar<std::int64_t>()() = 0;
    complete->scalar<bool>()() = true;
    for (std::size_t t = 0; t < set->size(); ++t) {
      core::TouchedRows* touched = set->touched_rows(t);
      OP_REQUIRES(ctx, touched != nullptr, DoesNotTrack(*set));
      OP_REQUIRES_OK(ctx, Guard([&] {
                       const core::TouchedRows::Gathered gathered = touched->Gather();
                       num_ids->scalar<std::int64_t>()() +=
                           static_cast<std::int64_t>(gathered.num_ids);
                       if (!gathered.complete) complete->scalar<bool>()() = false;
                     }));
    }
  }
};

class SaveTouchedOp final : public FileOp {
 public:
  explicit SaveTouchedOp(tf::OpKernelConstruction* ctx) : FileOp(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("compression", &compression_));
    const bool several_tables = !compression_.empty();
    OP_REQUIRES_OK(ctx, ReadExpireTimes(ctx, several_tables, &expire_times_));
  }

 private:
  absl::Status Run(tf::OpKernelContext* ctx) override {
    tf::core::RefCountPtr<TableSet> set;
    TF_RETURN_IF_ERROR(GetTableSet(ctx, 0, &set));
    std::string basename;
    TF_RETURN_IF_ERROR(ReadBasename(ctx, 1, &basename));
    return SaveTouchedRows(ctx->env(), *set, basename, compression_, expire_times_);
  }

  std::string compression_;
  ExpireTimes expire_times_;
};

class ForgetTouchedOp final : public tf::OpKernel {
 public:
  using tf::OpKernel::OpKernel;

  void Compute(tf::OpKernelContext* ctx) override {
    tf::core::RefCountPtr<TableSet> set;
    OP_REQUIRES_OK(ctx, GetTableSet(ctx, 0, &set));
    for (std::size_t t = 0; t < set->size(); ++t) {
      core::TouchedRows* touched = set->touched_rows(t);
      OP_REQUIRES(ctx, touched != nullptr, DoesNotTrack(*set));
      touched->Forget();
    }
  }
};

class RestoreLayersOp final : public FileOp {
 public:
  explicit RestoreLayersOp(tf::OpKernelConstruction* ctx) : FileOp(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("compression", &options_.compression));
    bool keep = false;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("keep_other_rows", &keep));
    if (keep) options_.mode = RestoreMode::kKeep;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("server", &options_.server));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("num_servers", &options_.num_servers));
  }

 private:
  absl::Status Run(tf::OpKernelContext* ctx) override {
    tf::core::RefCountPtr<TableSet> set;
    TF_RETURN_IF_ERROR(GetTableSet(ctx, 0, &set));
    const tf::Tensor& basenames = ctx->input(1);
    const tf::Tensor& layer_of = ctx->input(2);
    if (basenames.NumElements() != layer_of.NumElements()) {
      return absl::InvalidArgumentError(absl::StrCat("`layers` must have one number per basename, ",
                                                     basenames.NumElements(), ", got ",
                                                     layer_of.NumElements()));
    }
    std::vector<SnapshotLayer> layers;
    for (std::int64_t i = 0; i < basenames.NumElements(); ++i) {
      const std::int64_t layer = layer_of.flat<std::int64_t>()(i);
      const auto known = static_cast<std::int64_t>(layers.size());
      if (layer != known && layer != known - 1) {
        return absl::InvalidArgumentError(
            absl::StrCat("`layers` must start at 0 and rise by 0 or 1, entry ", i, " is ", layer));
      }
      if (layer < 0) return absl::InvalidArgumentError("`layers` must not be negative.");
      if (layer == known) layers.emplace_back();
      layers.back().emplace_back(basenames.flat<tf::tstring>()(i));
      TF_RETURN_IF_ERROR(CheckFileName("basenames", layers.back().back()));
    }
    if (layers.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("Table ", set->name(), " needs at least one basename to restore from."));
    }
    RestoreOptions options = options_;
    if (ctx->num_inputs() > 3) {
      options.rows.assign(set->size(), RowsToRead::kAll);
      TF_RETURN_IF_ERROR(Choose(*set, ctx->input(3), RowsToRead::kNone, &options.rows));
      TF_RETURN_IF_ERROR(Choose(*set, ctx->input(4), RowsToRead::kValues, &options.rows));
    }
    return RestoreTables(ctx->env(), *set, layers, options);
  }

  // Notes what is read of the tables `names`, which nobody has said yet.
  static absl::Status Choose(const TableSet& set, const tf::Tensor& names, RowsToRead choice,
                             std::vector<RowsToRead>* rows) {
    for (std::int64_t i = 0; i < names.NumElements(); ++i) {
      const tf::tstring& name = names.flat<tf::tstring>()(i);
      const auto& known = set.table_names();
      const std::size_t table = std::find(known.begin(), known.end(), name) - known.begin();
      if (table == known.size()) {
        return absl::InvalidArgumentError(
            absl::StrCat("Table ", set.name(), " has no table ", std::string(name), "."));
      }
      if ((*rows)[table] != RowsToRead::kAll) {
        return absl::InvalidArgumentError(absl::StrCat("`start_anew` and `keep_values` name table ",
                                                       std::string(name), " twice."));
      }
      (*rows)[table] = choice;
    }
    return absl::OkStatus();
  }

  RestoreOptions options_;
};

REGISTER_KERNEL_BUILDER(Name("MonolithTableTrackTouched").Device(tf::DEVICE_CPU), TrackTouchedOp);
REGISTER_KERNEL_BUILDER(Name("MonolithTableGatherTouched").Device(tf::DEVICE_CPU), GatherTouchedOp);
REGISTER_KERNEL_BUILDER(Name("MonolithTableSaveTouched").Device(tf::DEVICE_CPU), SaveTouchedOp);
REGISTER_KERNEL_BUILDER(Name("MonolithTableForgetTouched").Device(tf::DEVICE_CPU), ForgetTouchedOp);
REGISTER_KERNEL_BUILDER(Name("MonolithTableRestoreLayers").Device(tf::DEVICE_CPU), RestoreLayersOp);
REGISTER_KERNEL_BUILDER(Name("MonolithTableRestoreChanged").Device(tf::DEVICE_CPU),
                        RestoreLayersOp);

}  // namespace
}  // namespace monolith::ops
