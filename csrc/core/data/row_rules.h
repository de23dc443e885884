// What filters ask of a row, and what becomes of its labels.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "core/data/row_view.h"

namespace monolith::core {

// Draws a number of [0, 1).
using Draw = std::function<double()>;

// Conditions on fids, actions and time; those that are empty hold.
struct FidRule {
  std::unordered_set<std::uint64_t> filter_fids;   // None of these.
  std::unordered_set<std::uint64_t> has_fids;      // One of these.
  std::unordered_set<std::uint64_t> select_fids;   // All of these.
  std::unordered_set<std::int64_t> has_actions;    // One of these.
  std::unordered_set<std::uint64_t> select_slots;  // A fid in each of these.
  std::int64_t req_time_min = 0;

  [[nodiscard]] bool Holds(const RowView& row) const;
};

enum class Comparison {
  kGreater,
  kGreaterEqual,
  kLess,
  kLessEqual,
  kEqual,
  kNotEqual,
  kBetween,
  kIn,
  kNotIn,
  kStartsWith,
  kEndsWith,
  kAny,
  kAll,
  kDiff
};

// Throws std::invalid_argument if there is no comparison of that name, such as `ge`.
[[nodiscard]] Comparison FindComparison(std::string_view name);

// What values are compared with; those of one kind only are filled.
struct Operands {
  std::vector<std::int64_t> integers;
  std::vector<double> floats;
  std::vector<std::string> strings;
};

// A condition on the values of a field or a feature.
class ValueRule {
 public:
  // `keep_empty` says what holds where there are no values; of kFixed64, integers have no sign.
  // Throws std::invalid_argument unless there are as many operands as the comparison takes.
  ValueRule(Comparison comparison, LineIdKind kind, Operands operands, bool keep_empty);

  // Whether it holds of values: any, all and diff look at all of them, the others at the first.
  [[nodiscard]] bool Holds(const FieldValues& values) const;

 private:
  [[nodiscard]] std::size_t CountOperands() const;

  Comparison comparison_;
  LineIdKind kind_;
  Operands operands_;                    // Sorted where there may be many.
  std::vector<std::uint64_t> unsigned_;  // The integers of kFixed64.
  bool keep_empty_;
};

// The labels of a task, by actions.
struct LabelTask {
  std::vector<std::int64_t> positive;
  std::vector<std::int64_t> negative;
  double rate = 1;
};

// Returns the labels of a row with one more for each task. A row with one of the positive actions
// gets 1; another one `negative`, with the rate of the task, if there are no negative actions or it
// has one of them; and the lowest float otherwise. So does a first label that is not positive.
[[nodiscard]] std::vector<float> AddLabels(const std::vector<LabelTask>& tasks, float negative,
                                           const RowView& row, const Draw& draw);

// Gives each channel a label of its own.
struct ScatterRule {
  std::unordered_map<std::int64_t, std::size_t> index_of_channel;
  std::size_t num_labels = 0;  // More than each index.

  // Returns the labels of a row: its first one, at the index of its channel, and the lowest float
  // elsewhere; that only, if the channel has no index or the row no label.
  [[nodiscard]] std::vector<float> Apply(const RowView& row) const;
};

// Leaves out some of the rows whose label is below a threshold.
struct SampleRule {
  std::int64_t label_index = 0;
  double threshold = 0;
  double drop_rate = 0;
  // The first of these that a row has decides the rate, if it is one of `rate_actions`.
  std::vector<std::int64_t> action_priority;
  std::vector<std::int64_t> rate_actions;
  std::vector<double> rates;

  // Whether to keep the row. Throws std::invalid_argument if it has no such label.
  [[nodiscard]] bool Holds(const RowView& row, const Draw& draw) const;
};

}  // namespace monolith::core
