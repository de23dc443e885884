// Ops on a set of tables at once: ids and rows of all tables in one flat tensor each.
//
// `id` holds the ids of table 0, then those of table 1, and so on; `id_split` [tables + 1] says
// where each begins. Rows follow in the same order, each as wide as its table.
#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "ops/system/crew.h"
#include "ops/system/parallel.h"
#include "ops/system/status_guard.h"
#include "ops/table/lookup_counts.h"
#include "ops/table/table_calls.h"
#include "ops/table/table_set.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/platform/env_time.h"

namespace monolith::ops {
namespace {

namespace tf = tensorflow;
namespace shapes = tensorflow::shape_inference;

absl::Status UnknownVectorShape(shapes::InferenceContext* c) {
  c->set_output(0, c->UnknownShapeOfRank(1));
  return absl::OkStatus();
}

REGISTER_OP("MonolithMultiHashTableLookup")
    .Input("mtable: resource")
    .Input("id: int64")
    .Input("id_split: int64")
    .Output("embedding: float")
    .SetIsStateful()
    .SetShapeFn(UnknownVectorShape)
    .Doc(R"doc(
Returns the rows of `id`, flat and table by table, zeros for absent ids, which get no row. Ids
[id_split[k], id_split[k + 1]) belong to table k.
)doc");

REGISTER_OP("MonolithMultiHashTableLookupEntry")
    .Input("mtable: resource")
    .Input("id: int64")
    .Input("id_split: int64")
    .Output("serialized_entries: string")
    .SetIsStateful()
    .SetShapeFn([](shapes::InferenceContext* c) {
      c->set_output(0, c->Vector(c->NumElements(c->input(1))));
      return absl::OkStatus();
    })
    .Doc("Returns a serialized EntryDump without id for each of `id`, empty for absent ids.");

REGISTER_OP("MonolithMultiHashTableAssign")
    .Input("mtable: resource")
    .Input("id: int64")
    .Input("id_split: int64")
    .Input("value: float")
    .Input("update_time: int64")
    .Output("updated_table: resource")
    .SetIsStateful()
    .SetShapeFn(shapes::ScalarShape)
    .Doc(R"doc(
Sets the rows of `id` to `value`, flat and table by table; absent ids get a row if the filter admits
them.
)doc");

REGISTER_OP("MonolithMultiHashTableAssignAdd")
    .Input("mtable: resource")
    .Input("id: int64")
    .Input("id_split: int64")
    .Input("value: float")
    .Input("update_time: int64")
    .Output("updated_table: resource")
    .SetIsStateful()
    .SetShapeFn(shapes::ScalarShape)
    .Doc(R"doc(
Adds `value` to the rows of `id`, flat and table by table; absent ids get a row if the filter admits
them.
)doc");

REGISTER_OP("MonolithMultiHashTableOptimize")
    .Input("mtable: resource")
    .Input("id: int64")
    .Input("id_split: int64")
    .Input("value: float")
    .Input("learning_rate: float")
    .Input("update_time: int64")
    .Input("global_step: int64")
    .Output("updated_table: resource")
    .Attr("enable_dedup: bool = false")
    .SetIsStateful()
    .SetShapeFn(shapes::ScalarShape)
    .Doc(R"doc(
Takes an optimizer step with the gradients `value`, flat and table by table, for each occurrence of
an id, or, with `enable_dedup`, for each distinct id on the sum of its gradients.
)doc");

REGISTER_OP("MonolithMultiHashTableErase")
    .Input("mtable: resource")
    .Input("id: int64")
    .Input("id_split: int64")
    .Output("updated_table: resource")
    .SetIsStateful()
    .SetShapeFn(shapes::ScalarShape)
    .Doc(R"doc(
Removes the rows of `id`; ids without a row are passed over. Works on a single table, too, with an
`id_split` of two numbers.
)doc");

REGISTER_OP("MonolithMultiHashTableReinitialize")
    .Input("mtable: resource")
    .Input("table_name: string")
    .Input("id: int64")
    .Output("updated_table: resource")
    .Output("id_status: int32")
    .SetIsStateful()
    .SetShapeFn([](shapes::InferenceContext* c) {
      c->set_output(0, c->Scalar());
      c->set_output(1, c->Vector(c->NumElements(c->input(2))));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Gives the ids of one table fresh rows. `id_status` is 1 where there was a row, 0 where there was
none, -1 everywhere if the set has no such table.
)doc");

// The part of a call that belongs to one table.
struct Part {
  std::size_t table;
  const std::int64_t* ids;
  std::size_t num_ids;
  std::size_t first_value;  // In the flat rows.
  std::size_t first_learning_rate;
};

// Checks `id_split` and cuts the call into parts; `num_values` becomes the length of the flat rows.
absl::Status CutIntoParts(const TableSet& set, const TableSet::Tables& tables, const tf::Tensor& id,
                          const tf::Tensor& id_split, std::vector<Part>* parts,
                          std::size_t* num_values) {
  const std::size_t n = tables.size();
  if (static_cast<std::size_t>(id_split.NumElements()) != n + 1) {
    return absl::InvalidArgumentError(absl::StrCat(set.name(), ": id_split must be ", n + 1,
                                                   ". Current: ", id_split.NumElements()));
  }
  const auto split = id_split.flat<std::int64_t>();
  if (split(0) != 0) {  // Also of a set without tables.
    return absl::InvalidArgumentError(absl::StrCat(
        set.name(), ": id_split must start at 0, never fall and end at the number of ids, ",
        id.NumElements(), "; entry 0 is ", split(0)));
  }
  *num_values = 0;
  std::size_t learning_rates = 0;
  for (std::size_t i = 0; i < n; ++i) {
    if (split(i) > split(i + 1) || split(i + 1) > id.NumElements()) {
      return absl::InvalidArgumentError(absl::StrCat(
          set.name(), ": id_split must start at 0, never fall and end at the number of ids, ",
          id.NumElements(), "; entry ", i, " is ", split(i), ", entry ", i + 1, " is ",
          split(i + 1)));
    }
    const auto count = static_cast<std::size_t>(split(i + 1) - split(i));
    parts->push_back(
        {i, id.flat<std::int64_t>().data() + split(i), count, *num_values, learning_rates});
    *num_values += count * tables[i]->dim();
    if (set.is_for_training()) learning_rates += tables[i]->accessor().num_segments();
  }
  if (split(n) != id.NumElements()) {
    return absl::InvalidArgumentError(
        absl::StrCat("The length of tensor `id` doesn't equal to table num. id_split ends at ",
                     split(n), " but there are ", id.NumElements(), " ids in ", set.name()));
  }
  return absl::OkStatus();
}

// Runs `work` on every part that has ids, over TensorFlow's threads, and names the table in errors.
// A large part is alone worth all threads, so parts go one by one then. Small ones are a crew's: it
// does not wait for threads that wake up late, and those are awake then for the layers that follow.
template <typename Work>
absl::Status ForEachPart(tf::OpKernelContext* ctx, const TableSet& set,
                         const std::vector<Part>& parts, Work&& work) {
  std::vector<absl::Status> statuses(parts.size());
  const core::Parallel parallel = OnAllThreads(ctx);
  const auto run = [&](const Part& part, const core::Parallel* threads) {
    if (part.num_ids == 0) return;
    statuses[part.table] =
        NameTable(Guard([&] { work(part, threads); }), set.table_names()[part.table]);
  };
  std::vector<const Part*> small;
  std::size_t ids_of_small = 0;
  for (const Part& part : parts) {
    if (WorthThreads(ctx, part.num_ids, false)) {
      run(part, &parallel);
    } else if (part.num_ids > 0) {
      small.push_back(&part);
      ids_of_small += part.num_ids;
    }
  }
  if (!small.empty()) {
    // A thread wakes up in about the time that so many ids take.
    constexpr std::size_t kIdsPerHelper = 1000;
    Crew crew(ctx,
              static_cast<std::int64_t>(std::min(small.size() - 1, ids_of_small / kIdsPerHelper)));
    crew.ForEach(static_cast<std::int64_t>(small.size()),
                 [&](std::int64_t i) { run(*small[i], nullptr); });
  }
  for (const absl::Status& status : statuses) TF_RETURN_IF_ERROR(status);
  return absl::OkStatus();
}

// Finds the set and the parts of the call, then lets the concrete op work on them.
class MultiTableOp : public tf::OpKernel {
 public:
  using tf::OpKernel::OpKernel;

  void Compute(tf::OpKernelContext* ctx) final {
    tf::core::RefCountPtr<TableSet> set;
    OP_REQUIRES_OK(ctx, GetTableSet(ctx, 0, &set));
    const auto kept = set->tables();
    const TableSet::Tables& tables = *kept;
    std::vector<Part> parts;
    std::size_t num_values = 0;
    OP_REQUIRES_OK(ctx,
                   CutIntoParts(*set, tables, ctx->input(1), ctx->input(2), &parts, &num_values));
    OP_REQUIRES_OK(ctx, Run(ctx, *set, tables, parts, num_values));
  }

 protected:
  virtual absl::Status Run(tf::OpKernelContext* ctx, const TableSet& set,
                           const TableSet::Tables& tables, const std::vector<Part>& parts,
                           std::size_t num_values) = 0;

  // The flat rows of a write, checked against the ids.
  static absl::Status ReadValues(tf::OpKernelContext* ctx, const TableSet& set,
                                 std::size_t num_values, const float** values) {
    const tf::Tensor& value = ctx->input(3);
    if (static_cast<std::size_t>(value.NumElements()) < num_values) {
      return absl::InvalidArgumentError(absl::StrCat(
          "The length of tensor `value` is too short. Currently value has ", value.NumElements(),
          " floats, the ids of ", set.name(), " need ", num_values));
    }
    if (static_cast<std::size_t>(value.NumElements()) > num_values) {
      return absl::InvalidArgumentError(absl::StrCat(
          "The length of tensor `value` is too long. Currently value has ", value.NumElements(),
          " floats, the ids of ", set.name(), " need ", num_values));
    }
    *values = value.flat<float>().data();
    return absl::OkStatus();
  }
};

class MultiLookupOp final : public MultiTableOp {
 public:
  using MultiTableOp::MultiTableOp;

 private:
  absl::Status Run(tf::OpKernelContext* ctx, const TableSet& set, const TableSet::Tables& tables,
                   const std::vector<Part>& parts, std::size_t num_values) override {
    tf::Tensor* rows = nullptr;
    TF_RETURN_IF_ERROR(
        ctx->allocate_output(0, tf::TensorShape({static_cast<std::int64_t>(num_values)}), &rows));
    float* flat = rows->flat<float>().data();
    return ForEachPart(ctx, set, parts, [&](const Part& part, const core::Parallel* parallel) {
      CountLookup(part.num_ids, tables[part.table]->Lookup(part.ids, part.num_ids,
                                                           flat + part.first_value, parallel));
    });
  }
};

class MultiLookupEntryOp final : public MultiTableOp {
 public:
  using MultiTableOp::MultiTableOp;

 private:
  absl::Status Run(tf::OpKernelContext* ctx, const TableSet& set, const TableSet::Tables& tables,
                   const std::vector<Part>& parts, std::size_t) override {
    tf::Tensor* entries = nullptr;
    TF_RETURN_IF_ERROR(
        ctx->allocate_output(0, tf::TensorShape({ctx->input(1).NumElements()}), &entries));
    auto out = entries->flat<tf::tstring>();
    const std::int64_t* first = ctx->input(1).flat<std::int64_t>().data();
    return ForEachPart(ctx, set, parts, [&](const Part& part, const core::Parallel*) {
      std::vector<std::string> found(part.num_ids);
      tables[part.table]->LookupEntry(part.ids, part.num_ids, found.data());
      for (std::size_t i = 0; i < found.size(); ++i) out(part.ids - first + i) = found[i];
    });
  }
};

class MultiAssignOp : public MultiTableOp {
 public:
  using MultiTableOp::MultiTableOp;

 protected:
  virtual void Write(core::EmbeddingTable& table, const std::int64_t* ids, std::size_t n,
                     const float* rows, const core::WriteOptions& options) {
    table.Assign(ids, n, rows, options);
  }

 private:
  absl::Status Run(tf::OpKernelContext* ctx, const TableSet& set, const TableSet::Tables& tables,
                   const std::vector<Part>& parts, std::size_t num_values) override {
    const float* values = nullptr;
    TF_RETURN_IF_ERROR(ReadValues(ctx, set, num_values, &values));
    core::WriteOptions options;
    TF_RETURN_IF_ERROR(ReadNonNegative(ctx, 4, "update_time", &options.update_time_sec));
    ctx->set_output(0, ctx->input(0));
    return ForEachPart(ctx, set, parts, [&](const Part& part, const core::Parallel* parallel) {
      const NoteTouched note(set, part.table, part.ids, part.num_ids);
      core::WriteOptions here = options;
      here.filter = set.filter(part.table);
      here.parallel = parallel;
      Write(*tables[part.table], part.ids, part.num_ids, values + part.first_value, here);
    });
  }
};

class MultiAssignAddOp final : public MultiAssignOp {
 public:
  using MultiAssignOp::MultiAssignOp;

 protected:
  void Write(core::EmbeddingTable& table, const std::int64_t* ids, std::size_t n, const float* rows,
             const core::WriteOptions& options) override {
    table.AssignAdd(ids, n, rows, options);
  }
};

class MultiOptimizeOp final : public MultiTableOp {
 public:
  explicit MultiOptimizeOp(tf::OpKernelConstruction* ctx) : MultiTableOp(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("enable_dedup", &enable_dedup_));
  }

 private:
  absl::Status Run(tf::OpKernelContext* ctx, const TableSet& set, const TableSet::Tables& tables,
                   const std::vector<Part>& parts, std::size_t num_values) override {
    TF_RETURN_IF_ERROR(CheckForTraining(set));
    const float* grads = nullptr;
    TF_RETURN_IF_ERROR(ReadValues(ctx, set, num_values, &grads));
    const tf::Tensor& learning_rates = ctx->input(4);
    TF_RETURN_IF_ERROR(CheckLearningRates(learning_rates, set.num_learning_rates(), set.name()));
    UpdateArguments arguments;
    TF_RETURN_IF_ERROR(ReadNonNegative(ctx, 5, "update_time", &arguments.update_time_sec));
    TF_RETURN_IF_ERROR(ReadNonNegative(ctx, 6, "global_step", &arguments.global_step));
    arguments.sum_equal_ids = enable_dedup_;
    ctx->set_output(0, ctx->input(0));
    return ForEachPart(ctx, set, parts, [&](const Part& part, const core::Parallel* parallel) {
      Optimize(set, part.table, *tables[part.table], part.ids, part.num_ids,
               grads + part.first_value,
               learning_rates.flat<float>().data() + part.first_learning_rate, arguments, parallel);
    });
  }

  bool enable_dedup_ = false;
};

class MultiEraseOp final : public MultiTableOp {
 public:
  using MultiTableOp::MultiTableOp;

 private:
  absl::Status Run(tf::OpKernelContext* ctx, const TableSet& set, const TableSet::Tables& tables,
                   const std::vector<Part>& parts, std::size_t) override {
    ctx->set_output(0, ctx->input(0));
    return ForEachPart(ctx, set, parts, [&](const Part& part, const core::Parallel*) {
      const NoteTouched note(set, part.table, part.ids, part.num_ids);
      tables[part.table]->Erase(part.ids, part.num_ids);
      set.sync_client()->Removed(set.table_names()[part.table], part.ids, part.num_ids);
    });
  }
};

class MultiReinitializeOp final : public tf::OpKernel {
 public:
  using tf::OpKernel::OpKernel;

  void Compute(tf::OpKernelContext* ctx) override {
    tf::core::RefCountPtr<TableSet> set;
    OP_REQUIRES_OK(ctx, GetTableSet(ctx, 0, &set));
    const tf::Tensor& table_name = ctx->input(1);
    OP_REQUIRES(ctx, table_name.NumElements() == 1,
                absl::InvalidArgumentError(absl::StrCat("`table_name` must be a scalar, got shape ",
                                                        table_name.shape().DebugString())));
    const std::string wanted(table_name.flat<tf::tstring>()(0));
    const tf::Tensor& ids = ctx->input(2);
    tf::Tensor* status = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(1, tf::TensorShape({ids.NumElements()}), &status));
    ctx->set_output(0, ctx->input(0));

    const auto& names = set->table_names();
    const auto found = std::find(names.begin(), names.end(), wanted);
    if (found == names.end()) {
      LOG(ERROR) << "Reinitialize: " << set->name() << " has no table " << wanted
                 << "; nothing was done.";
      status->flat<std::int32_t>().setConstant(-1);
      return;
    }
    const std::shared_ptr<core::EmbeddingTable> table = (*set->tables())[found - names.begin()];
    const auto n = static_cast<std::size_t>(ids.NumElements());
    const auto now_sec = static_cast<std::int64_t>(tf::EnvTime::NowSeconds());
    const auto index = static_cast<std::size_t>(found - names.begin());
    OP_REQUIRES_OK(ctx, NameTable(Guard([&] {
                                    const NoteTouched note(*set, index,
                                                           ids.flat<std::int64_t>().data(), n);
                                    table->Reinitialize(ids.flat<std::int64_t>().data(), n, now_sec,
                                                        status->flat<std::int32_t>().data());
                                  }),
                                  wanted));
    set->sync_client()->Touched(wanted, ids.flat<std::int64_t>().data(), n);
  }
};

REGISTER_KERNEL_BUILDER(Name("MonolithMultiHashTableLookup").Device(tf::DEVICE_CPU), MultiLookupOp);
REGISTER_KERNEL_BUILDER(Name("MonolithMultiHashTableLookupEntry").Device(tf::DEVICE_CPU),
                        MultiLookupEntryOp);
REGISTER_KERNEL_BUILDER(Name("MonolithMultiHashTableAssign").Device(tf::DEVICE_CPU), MultiAssignOp);
REGISTER_KERNEL_BUILDER(Name("MonolithMultiHashTableAssignAdd").Device(tf::DEVICE_CPU),
                        MultiAssignAddOp);
REGISTER_KERNEL_BUILDER(Name("MonolithMultiHashTableOptimize").Device(tf::DEVICE_CPU),
                        MultiOptimizeOp);
REGISTER_KERNEL_BUILDER(Name("MonolithMultiHashTableErase").Device(tf::DEVICE_CPU), MultiEraseOp);
REGISTER_KERNEL_BUILDER(Name("MonolithMultiHashTableReinitialize").Device(tf::DEVICE_CPU),
                        MultiReinitializeOp);

}  // namespace
}  // namespace monolith::ops
