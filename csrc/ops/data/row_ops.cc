// Filters of serialized rows, Instances or Examples.
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/data/row_rules.h"
#include "core/data/row_view.h"
#include "ops/data/row_kernel.h"
#include "ops/system/status_guard.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/framework/tensor.h"

namespace monolith::ops {
namespace {

namespace tf = tensorflow;

REGISTER_OP("MonolithRowHasFids")
    .Input("rows: string")
    .Output("has_fids: bool")
    .Attr("format: {'instance', 'example'}")
    .Attr("filter_fids: list(int) = []")
    .Attr("any_fids: list(int) = []")
    .Attr("select_fids: list(int) = []")
    .Attr("has_actions: list(int) = []")
    .Attr("select_slots: list(int) = []")
    .Attr("req_time_min: int = 0")
    .SetShapeFn(tf::shape_inference::UnchangedShape)
    .Doc(R"doc(
Tells which rows have fids and actions, and are not too old.

rows: Serialized Instances or Examples.
has_fids: By row.
filter_fids: A row with one of these has not.
any_fids: One with none of these has not.
select_fids: One that lacks one of these has not.
has_actions: One with none of these actions has not.
select_slots: One without a fid in each of these slots has not.
req_time_min: One of an earlier time has not.
)doc");

REGISTER_OP("MonolithRowHasValue")
    .Input("rows: string")
    .Output("has_value: bool")
    .Attr("format: {'instance', 'example'}")
    .Attr("field_name: string")
    .Attr("is_feature: bool = false")
    .Attr("comparison: string")
    .Attr("kind: {'int64', 'uint64', 'float', 'double', 'string'}")
    .Attr("integers: list(int) = []")
    .Attr("floats: list(float) = []")
    .Attr("strings: list(string) = []")
    .Attr("keep_empty: bool = false")
    .SetShapeFn(tf::shape_inference::UnchangedShape)
    .Doc(R"doc(
Tells of which rows a comparison holds.

rows: Serialized Instances or Examples.
has_value: By row.
field_name: What is compared: a field of the LineId.
is_feature: Or a feature of that name, if rows are Examples.
comparison: gt, ge, lt, le, eq, neq, between, in, not-in, startswith or endswith: of the only value;
  any, all, diff: of all values.
kind: The type of the values.
integers: What they are compared with, if they are integers; the bits of doubles.
floats: If they are floats.
strings: If they are strings.
keep_empty: What holds of a row without values.
)doc");

REGISTER_OP("MonolithRowHasLabel")
    .Input("rows: string")
    .Output("has_label: bool")
    .Attr("format: {'instance', 'example'}")
    .Attr("thresholds: list(float)")
    .Attr("filter_equal: bool = false")
    .SetShapeFn(tf::shape_inference::UnchangedShape)
    .Doc(R"doc(
Tells which rows have a label that reaches its threshold.

rows: Serialized Instances or Examples. One with fewer labels than thresholds has none.
has_label: By row.
thresholds: One for each of the first labels.
filter_equal: Whether a label has to be greater.
)doc");

REGISTER_OP("MonolithRowSample")
    .Input("rows: string")
    .Output("is_kept: bool")
    .Attr("format: {'instance', 'example'}")
    .Attr("drop_rate: float")
    .Attr("label_index: int >= 0 = 0")
    .Attr("threshold: float = 0.0")
    .Attr("action_priority: list(int) = []")
    .Attr("rate_actions: list(int) = []")
    .Attr("rates: list(float) = []")
    .Attr("seed: int = 0")
    .Attr("seed2: int = 0")
    .SetIsStateful()
    .SetShapeFn(tf::shape_inference::UnchangedShape)
    .Doc(R"doc(
Draws which rows to keep among those whose label is below a threshold; others are kept.

rows: Serialized Instances or Examples.
is_kept: By row.
drop_rate: How many of them go.
label_index: Which label counts.
action_priority: The first of these actions that a row has decides.
rate_actions: Actions that have a rate of their own.
rates: Their rates.
seed: With `seed2`, decides the draws; both 0 draw others in each run.
)doc");

template <typename Element>
absl::Status GetSet(tf::OpKernelConstruction* ctx, const char* name,
                    std::unordered_set<Element>* set) {
  std::vector<std::int64_t> values;
  TF_RETURN_IF_ERROR(ctx->GetAttr(name, &values));
  set->insert(values.begin(), values.end());
  return absl::OkStatus();
}

// What the filters share: a bool for each row.
class RowFilterOp : public tf::OpKernel {
 public:
  explicit RowFilterOp(tf::OpKernelConstruction* ctx)
      : tf::OpKernel(ctx), format_(GetFormat(ctx)) {}

  void Compute(tf::OpKernelContext* ctx) override {
    const tf::Tensor& rows = ctx->input(0);
    tf::Tensor* found = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, rows.shape(), &found));
    bool* out = found->flat<bool>().data();
    OP_REQUIRES_OK(ctx, ForEachRow(rows, format_, [&](std::int64_t i, const core::RowView& row) {
                     out[i] = Holds(row);
                   }));
  }

 protected:
  [[nodiscard]] virtual bool Holds(const core::RowView& row) = 0;

 private:
  core::RecordFormat format_;
};

class RowHasFidsOp : public RowFilterOp {
 public:
  explicit RowHasFidsOp(tf::OpKernelConstruction* ctx) : RowFilterOp(ctx) {
    OP_REQUIRES_OK(ctx, GetSet(ctx, "filter_fids", &rule_.filter_fids));
    OP_REQUIRES_OK(ctx, GetSet(ctx, "any_fids", &rule_.has_fids));
    OP_REQUIRES_OK(ctx, GetSet(ctx, "select_fids", &rule_.select_fids));
    OP_REQUIRES_OK(ctx, GetSet(ctx, "has_actions", &rule_.has_actions));
    OP_REQUIRES_OK(ctx, GetSet(ctx, "select_slots", &rule_.select_slots));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("req_time_min", &rule_.req_time_min));
  }

 protected:
  bool Holds(const core::RowView& row) override { return rule_.Holds(row); }

 private:
  core::FidRule rule_;
};

class RowHasValueOp : public RowFilterOp {
 public:
  explicit RowHasValueOp(tf::OpKernelConstruction* ctx) : RowFilterOp(ctx) {
    std::string comparison;
    std::string kind;
    std::vector<float> floats;
    core::Operands operands;
    bool keep_empty = false;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("field_name", &name_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("is_feature", &is_feature_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("comparison", &comparison));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("kind", &kind));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("integers", &operands.integers));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("floats", &floats));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("strings", &operands.strings));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("keep_empty", &keep_empty));
    operands.floats.assign(floats.begin(), floats.end());
    if (kind == "double") {
      operands.floats.resize(operands.integers.size());
      std::memcpy(operands.floats.data(), operands.integers.data(),
                  operands.integers.size() * sizeof(double));
    }
    kind_ = kind == "int64"    ? core::LineIdKind::kInteger
            : kind == "uint64" ? core::LineIdKind::kFixed64
            : kind == "string" ? core::LineIdKind::kString
                               : core::LineIdKind::kFloat;
    field_ = core::FindLineIdField(name_);
    OP_REQUIRES(ctx, is_feature_ || field_ != nullptr,
                absl::InvalidArgumentError(absl::StrCat(name_, " is not in line id, pls check!")));
    OP_REQUIRES(ctx, is_feature_ || field_->kind == kind_,
                absl::InvalidArgumentError(
                    absl::StrCat("`kind` must be the type of ", name_, ", got ", kind, ".")));
    OP_REQUIRES_OK(ctx, Guard([&] {
                     rule_ = std::make_unique<core::ValueRule>(
                         core::FindComparison(comparison), kind_, std::move(operands), keep_empty);
                   }));
  }

 protected:
  bool Holds(const core::RowView& row) override {
    return rule_->Holds(is_feature_ ? row.ReadFeature(name_, kind_) : row.ReadLineId(*field_));
  }

 private:
  std::string name_;
  bool is_feature_ = false;
  core::LineIdKind kind_ = core::LineIdKind::kInteger;
  const core::LineIdField* field_ = nullptr;
  std::unique_ptr<core::ValueRule> rule_;
};

class RowHasLabelOp : public RowFilterOp {
 public:
  explicit RowHasLabelOp(tf::OpKernelConstruction* ctx) : RowFilterOp(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("thresholds", &thresholds_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("filter_equal", &filter_equal_));
  }

 protected:
  bool Holds(const core::RowView& row) override {
    const std::vector<float>& labels = row.labels();
    if (labels.size() < thresholds_.size()) return false;
    for (std::size_t i = 0; i < thresholds_.size(); ++i) {
      if (labels[i] > thresholds_[i] || (labels[i] == thresholds_[i] && !filter_equal_)) {
        return true;
      }
    }
    return false;
  }

 private:
  std::vector<float> thresholds_;
  bool filter_equal_ = false;
};

class RowSampleOp : public RowFilterOp {
 public:
  explicit RowSampleOp(tf::OpKernelConstruction* ctx) : RowFilterOp(ctx) {
    std::vector<float> rates;
    float drop_rate = 0;
    float threshold = 0;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("drop_rate", &drop_rate));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("label_index", &rule_.label_index));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("threshold", &threshold));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("action_priority", &rule_.action_priority));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("rate_actions", &rule_.rate_actions));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("rates", &rates));
    OP_REQUIRES(ctx, rates.size() == rule_.rate_actions.size(),
                absl::InvalidArgumentError("`rates` must have one for each of `rate_actions`."));
    OP_REQUIRES_OK(ctx, CheckRates({drop_rate}));
    OP_REQUIRES_OK(ctx, CheckRates(rates));
    rule_.drop_rate = drop_rate;
    rule_.threshold = threshold;
    rule_.rates.assign(rates.begin(), rates.end());
    OP_REQUIRES_OK(ctx, dice_.Init(ctx));
  }

 protected:
  bool Holds(const core::RowView& row) override {
    return rule_.Holds(row, [this] { return dice_(); });
  }

 private:
  core::SampleRule rule_;
  Dice dice_;
};

REGISTER_KERNEL_BUILDER(Name("MonolithRowHasFids").Device(tf::DEVICE_CPU), RowHasFidsOp);
REGISTER_KERNEL_BUILDER(Name("MonolithRowHasValue").Device(tf::DEVICE_CPU), RowHasValueOp);
REGISTER_KERNEL_BUILDER(Name("MonolithRowHasLabel").Device(tf::DEVICE_CPU), RowHasLabelOp);
REGISTER_KERNEL_BUILDER(Name("MonolithRowSample").Device(tf::DEVICE_CPU), RowSampleOp);

}  // namespace
}  // namespace monolith::ops
