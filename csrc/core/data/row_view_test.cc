#include "core/data/row_view.h"

#include <gtest/gtest.h>

#include <limits>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "core/data/fid.h"
#include "core/data/row_rules.h"
#include "core/testing/bytes.h"
#include "core/wire/wire.h"

namespace monolith::core {
namespace {

using testing::ForEachDamage;

std::string Nested(std::uint32_t number, const std::string& bytes) {
  std::string message;
  WireWriter(&message).Bytes(number, bytes);
  return message;
}

// An Example with the action 1, a label of 0, a fid of slot 3, and a number.
std::string MakeRow() {
  std::string line_id;
  WireWriter(&line_id).Varint(6, 1);
  std::string label;
  WireWriter(&label).Fixed32(101, 0);
  const std::uint64_t fid = FidV2(3, 8).value();
  const std::string fids(reinterpret_cast<const char*>(&fid), sizeof(fid));
  std::string number;
  WireWriter(&number).Varint(12, 7);
  return Nested(1, Nested(1, "user") + Nested(2, Nested(2, Nested(1, fids)))) +
         Nested(1, Nested(1, "age") + Nested(2, number)) + label + Nested(100, line_id);
}

TEST(RowViewTest, Reads) {
  const std::string bytes = MakeRow();
  const RowView row(RecordFormat::kExample, bytes);
  EXPECT_EQ(row.labels(), std::vector<float>{0});
  ASSERT_EQ(row.ReadFids().size(), 1u);
  EXPECT_EQ(row.ReadFids()[0].slot, 3u);
  EXPECT_EQ(row.ReadLineId(*FindLineIdField("actions")).integers, std::vector<std::int64_t>{1});
  EXPECT_EQ(row.ReadLineId(*FindLineIdField("sample_rate")).floats, std::vector<double>{1});
  EXPECT_EQ(row.ReadFeature("age", LineIdKind::kInteger).integers, std::vector<std::int64_t>{7});
  EXPECT_THROW((void)row.ReadFeature("age", LineIdKind::kFloat), std::invalid_argument);
}

TEST(RowViewTest, ChangesLabelsAndLineId) {
  const std::string bytes = MakeRow();
  std::string more;
  WireWriter(&more).Varint(6, 2);
  const std::string changed = RowView(RecordFormat::kExample, bytes).Change({1, 2}, more);
  const RowView row(RecordFormat::kExample, changed);
  EXPECT_EQ(row.labels(), (std::vector<float>{1, 2}));
  EXPECT_EQ(row.ReadLineId(*FindLineIdField("actions")).integers,
            (std::vector<std::int64_t>{1, 2}));
  EXPECT_EQ(row.ReadFids().size(), 1u);
}

// Whatever the bytes are, a row is read or refused.
TEST(RowViewTest, Damaged) {
  ForEachDamage(MakeRow(), 2000, [](std::string_view bytes) {
    for (const RecordFormat format : {RecordFormat::kInstance, RecordFormat::kExample}) {
      try {
        const RowView row(format, bytes);
        (void)row.Change(row.labels(), "");
        for (const LineIdField& field : kLineIdFields) (void)row.ReadLineId(field);
        (void)row.ReadFids();
        (void)row.ReadFeature("age", LineIdKind::kInteger);
      } catch (const std::invalid_argument&) {
      }
    }
  });
}

TEST(RowRulesTest, LabelsOfTasks) {
  const std::string bytes = MakeRow();
  const RowView row(RecordFormat::kExample, bytes);
  const float invalid = std::numeric_limits<float>::lowest();
  const std::vector<LabelTask> tasks = {{{1}, {}, 1}, {{2}, {1}, 0.5}, {{2}, {3}, 1}};
  EXPECT_EQ(AddLabels(tasks, -1, row, [] { return 0.4; }),
            (std::vector<float>{invalid, 1, -1, invalid}));
  EXPECT_EQ(AddLabels(tasks, -1, row, [] { return 0.5; }),
            (std::vector<float>{invalid, 1, invalid, invalid}));
}

TEST(RowRulesTest, AChannelHasALabelOfItsOwn) {
  const float invalid = std::numeric_limits<float>::lowest();
  ScatterRule rule;
  rule.index_of_channel = {{7, 2}, {9, 0}};
  rule.num_labels = 3;
  const auto apply = [&](std::int64_t channel, const std::vector<float>& labels) {
    std::string line_id;
    WireWriter(&line_id).Varint(19, channel);
    const std::string bytes = RowView(RecordFormat::kExample, "").Change(labels, line_id);
    return rule.Apply(RowView(RecordFormat::kExample, bytes));
  };
  EXPECT_EQ(apply(7, {0.5, 4}), (std::vector<float>{invalid, invalid, 0.5}));
  EXPECT_EQ(apply(9, {0}), (std::vector<float>{0, invalid, invalid}));
  EXPECT_EQ(apply(8, {1}), (std::vector<float>{invalid, invalid, invalid}));
  EXPECT_EQ(apply(7, {}), (std::vector<float>{invalid, invalid, invalid}));
  EXPECT_EQ(rule.Apply(RowView(RecordFormat::kExample, "")).size(), 3u);
}

TEST(RowRulesTest, Comparisons) {
  EXPECT_THROW((void)FindComparison("like"), std::invalid_argument);
  EXPECT_THROW(ValueRule(Comparison::kBetween, LineIdKind::kFloat, {{}, {1}, {}}, false),
               std::invalid_argument);
  FieldValues values;
  values.integers = {-1, 4};
  const ValueRule has_sign(FindComparison("lt"), LineIdKind::kInteger, {{3}, {}, {}}, false);
  const ValueRule has_none(FindComparison("lt"), LineIdKind::kFixed64, {{3}, {}, {}}, false);
  EXPECT_TRUE(has_sign.Holds(values));
  EXPECT_FALSE(has_none.Holds(values));
  const ValueRule any(FindComparison("any"), LineIdKind::kInteger, {{9, 4}, {}, {}}, false);
  EXPECT_TRUE(any.Holds(values));
}

}  // namespace
}  // namespace monolith::core
