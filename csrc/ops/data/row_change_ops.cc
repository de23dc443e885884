// Changes of serialized rows, Instances or Examples.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/data/row_rules.h"
#include "core/data/row_view.h"
#include "ops/data/row_kernel.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/framework/tensor.h"

namespace monolith::ops {
namespace {

namespace tf = tensorflow;

REGISTER_OP("MonolithRowAddAction")
    .Input("rows: string")
    .Input("where: bool")
    .Output("changed: string")
    .Attr("format: {'instance', 'example'}")
    .Attr("action: int")
    .SetShapeFn([](tf::shape_inference::InferenceContext* c) {
      tf::shape_inference::ShapeHandle merged;
      TF_RETURN_IF_ERROR(c->Merge(c->input(0), c->input(1), &merged));
      c->set_output(0, merged);
      return absl::OkStatus();
    })
    .Doc(R"doc(
Adds an action to the LineId of some rows.

rows: Serialized Instances or Examples.
where: By row, whether it gets the action.
changed: The rows.
)doc");

REGISTER_OP("MonolithRowAddLabels")
    .Input("rows: string")
    .Output("changed: string")
    .Attr("format: {'instance', 'example'}")
    .Attr("positive_actions: list(int)")
    .Attr("num_positive: list(int)")
    .Attr("negative_actions: list(int)")
    .Attr("num_negative: list(int)")
    .Attr("rates: list(float)")
    .Attr("negative_value: float")
    .Attr("sample_rate: float")
    .Attr("seed: int = 0")
    .Attr("seed2: int = 0")
    .SetIsStateful()
    .SetShapeFn(tf::shape_inference::UnchangedShape)
    .Doc(R"doc(
Adds a label for each of several tasks, made of the actions of a row.

rows: Serialized Instances or Examples.
changed: The rows.
positive_actions: Those of all tasks; a row with one gets 1.
num_positive: By task, how many of them are its own.
negative_actions: Those of all tasks; a row with one, or any if there are none, gets the negative
  value with the rate of the task. Others get the lowest float.
num_negative: By task, how many of them are its own.
rates: By task.
sample_rate: What the LineId says from now on.
seed: With `seed2`, decides the draws; both 0 draw others in each run.
)doc");

REGISTER_OP("MonolithRowScatterLabel")
    .Input("rows: string")
    .Output("changed: string")
    .Attr("format: {'instance', 'example'}")
    .Attr("channels: list(int)")
    .Attr("indices: list(int)")
    .SetShapeFn(tf::shape_inference::UnchangedShape)
    .Doc(R"doc(
Moves the first label of a row to the index of its channel.

rows: Serialized Instances or Examples.
changed: The rows. Other labels are the lowest float, and so are all of rows of other channels.
channels: Values of `chnid` of the LineId.
indices: The index of each; a row gets one label more than the greatest.
)doc");

class RowAddActionOp : public tf::OpKernel {
 public:
  explicit RowAddActionOp(tf::OpKernelConstruction* ctx)
      : tf::OpKernel(ctx), format_(GetFormat(ctx)) {
    std::int64_t action = 0;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("action", &action));
    core::WireWriter(&line_id_).Varint(core::FindLineIdField("actions")->number,
                                       static_cast<std::uint64_t>(action));
  }

  void Compute(tf::OpKernelContext* ctx) override {
    const tf::Tensor& rows = ctx->input(0);
    const tf::Tensor& where = ctx->input(1);
    OP_REQUIRES(ctx, rows.shape() == where.shape(),
                absl::InvalidArgumentError(absl::StrCat(
                    "`where` must have an element for each row, got the shapes ",
                    rows.shape().DebugString(), " and ", where.shape().DebugString(), ".")));
    tf::Tensor* changed = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, rows.shape(), &changed));
    tf::tstring* out = changed->flat<tf::tstring>().data();
    const bool* adds = where.flat<bool>().data();
    OP_REQUIRES_OK(ctx, ForEachRow(rows, format_, [&](std::int64_t i, const core::RowView& row) {
                     out[i] = row.Change(row.labels(), adds[i] ? line_id_ : std::string());
                   }));
  }

 private:
  core::RecordFormat format_;
  std::string line_id_;
};

class RowAddLabelsOp : public tf::OpKernel {
 public:
  explicit RowAddLabelsOp(tf::OpKernelConstruction* ctx)
      : tf::OpKernel(ctx), format_(GetFormat(ctx)) {
    std::vector<float> rates;
    float sample_rate = 1;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("rates", &rates));
    OP_REQUIRES_OK(ctx, CheckRates(rates));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("negative_value", &negative_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("sample_rate", &sample_rate));
    tasks_.resize(rates.size());
    for (std::size_t i = 0; i < rates.size(); ++i) tasks_[i].rate = rates[i];
    OP_REQUIRES_OK(ctx, Divide(ctx, "positive", &core::LabelTask::positive));
    OP_REQUIRES_OK(ctx, Divide(ctx, "negative", &core::LabelTask::negative));
    core::WireWriter(&line_id_).Float(core::FindLineIdField("sample_rate")->number, sample_rate);
    OP_REQUIRES_OK(ctx, dice_.Init(ctx));
  }

  void Compute(tf::OpKernelContext* ctx) override {
    const tf::Tensor& rows = ctx->input(0);
    tf::Tensor* changed = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, rows.shape(), &changed));
    tf::tstring* out = changed->flat<tf::tstring>().data();
    const core::Draw draw = [this] { return dice_(); };
    OP_REQUIRES_OK(ctx, ForEachRow(rows, format_, [&](std::int64_t i, const core::RowView& row) {
                     out[i] = row.Change(core::AddLabels(tasks_, negative_, row, draw), line_id_);
                   }));
  }

 private:
  // Gives each task its part of the actions.
  absl::Status Divide(tf::OpKernelConstruction* ctx, const std::string& name,
                      std::vector<std::int64_t> core::LabelTask::* member) {
    std::vector<std::int64_t> actions;
    std::vector<std::int64_t> counts;
    TF_RETURN_IF_ERROR(ctx->GetAttr(name + "_actions", &actions));
    TF_RETURN_IF_ERROR(ctx->GetAttr("num_" + name, &counts));
    std::size_t at = 0;
    bool fits = counts.size() == tasks_.size();
    for (std::size_t i = 0; fits && i < counts.size(); ++i) {
      fits = counts[i] >= 0 && static_cast<std::size_t>(counts[i]) <= actions.size() - at;
      if (!fits) break;
      (tasks_[i].*member).assign(actions.begin() + at, actions.begin() + at + counts[i]);
      at += counts[i];
    }
    if (fits && at == actions.size()) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("`num_", name, "` must say for each of the ",
                                                   tasks_.size(), " tasks how many of `", name,
                                                   "_actions` are its own."));
  }

  core::RecordFormat format_;
  std::vector<core::LabelTask> tasks_;
  float negative_ = 0;
  std::string line_id_;
  Dice dice_;
};

class RowScatterLabelOp : public tf::OpKernel {
 public:
  explicit RowScatterLabelOp(tf::OpKernelConstruction* ctx)
      : tf::OpKernel(ctx), format_(GetFormat(ctx)) {
    constexpr std::int64_t kMostLabels = 1 << 10;
    std::vector<std::int64_t> channels;
    std::vector<std::int64_t> indices;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("channels", &channels));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("indices", &indices));
    OP_REQUIRES(ctx, channels.size() == indices.size(),
                absl::InvalidArgumentError(
                    absl::StrCat("`indices` must have one element for each of the ",
                                 channels.size(), " channels, got ", indices.size(), ".")));
    for (std::size_t i = 0; i < channels.size(); ++i) {
      OP_REQUIRES(ctx, indices[i] >= 0 && indices[i] < kMostLabels,
                  absl::InvalidArgumentError(absl::StrCat("An index must be 0 to ", kMostLabels - 1,
                                                          ", got ", indices[i], ".")));
      const auto index = static_cast<std::size_t>(indices[i]);
      rule_.num_labels = std::max(rule_.num_labels, index + 1);
      OP_REQUIRES(ctx, rule_.index_of_channel.emplace(channels[i], index).second,
                  absl::InvalidArgumentError(
                      absl::StrCat("Channel ", channels[i], " has more than one index.")));
    }
  }

  void Compute(tf::OpKernelContext* ctx) override {
    const tf::Tensor& rows = ctx->input(0);
    tf::Tensor* changed = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, rows.shape(), &changed));
    tf::tstring* out = changed->flat<tf::tstring>().data();
    OP_REQUIRES_OK(ctx, ForEachRow(rows, format_, [&](std::int64_t i, const core::RowView& row) {
                     out[i] = row.Change(rule_.Apply(row), "");
                   }));
  }

 private:
  core::RecordFormat format_;
  core::ScatterRule rule_;
};

REGISTER_KERNEL_BUILDER(Name("MonolithRowAddAction").Device(tf::DEVICE_CPU), RowAddActionOp);
REGISTER_KERNEL_BUILDER(Name("MonolithRowAddLabels").Device(tf::DEVICE_CPU), RowAddLabelsOp);
REGISTER_KERNEL_BUILDER(Name("MonolithRowScatterLabel").Device(tf::DEVICE_CPU), RowScatterLabelOp);

}  // namespace
}  // namespace monolith::ops
