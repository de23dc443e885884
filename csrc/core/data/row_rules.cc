#include "core/data/row_rules.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <limits>
#include <stdexcept>
#include <utility>

namespace monolith::core {
namespace {

constexpr std::string_view kNames[] = {"gt",       "ge",      "lt",  "le",     "eq",
                                       "neq",      "between", "in",  "not-in", "startswith",
                                       "endswith", "any",     "all", "diff"};

// A label that no loss counts.
constexpr float kInvalid = std::numeric_limits<float>::lowest();

std::vector<std::int64_t> ReadIntegers(const RowView& row, std::string_view field) {
  return row.ReadLineId(*FindLineIdField(field)).integers;
}

bool HasOne(const std::vector<std::int64_t>& wanted, const std::vector<std::int64_t>& values) {
  return std::any_of(values.begin(), values.end(), [&](std::int64_t value) {
    return std::find(wanted.begin(), wanted.end(), value) != wanted.end();
  });
}

bool StartsWith(std::string_view text, std::string_view with) {
  return text.substr(0, with.size()) == with;
}

bool EndsWith(std::string_view text, std::string_view with) {
  return text.size() >= with.size() && text.substr(text.size() - with.size()) == with;
}

// Whether a comparison takes any number of operands, which are sorted then.
bool TakesMany(Comparison comparison) {
  return comparison == Comparison::kIn || comparison == Comparison::kNotIn ||
         comparison >= Comparison::kAny;
}

template <typename Value, typename Operand>
bool Compare(Comparison comparison, const std::vector<Value>& values,
             const std::vector<Operand>& operands) {
  const auto is_operand = [&](const Value& value) {
    return std::binary_search(operands.begin(), operands.end(), value, std::less<>());
  };
  switch (comparison) {
    case Comparison::kGreater:
      return values[0] > operands[0];
    case Comparison::kGreaterEqual:
      return values[0] >= operands[0];
    case Comparison::kLess:
      return values[0] < operands[0];
    case Comparison::kLessEqual:
      return values[0] <= operands[0];
    case Comparison::kEqual:
      return values[0] == operands[0];
    case Comparison::kNotEqual:
      return values[0] != operands[0];
    case Comparison::kBetween:
      return operands[0] <= values[0] && values[0] < operands[1];
    case Comparison::kIn:
      return is_operand(values[0]);
    case Comparison::kNotIn:
      return !is_operand(values[0]);
    case Comparison::kAny:
      return std::any_of(values.begin(), values.end(), is_operand);
    case Comparison::kDiff:
      return std::none_of(values.begin(), values.end(), is_operand);
    case Comparison::kAll:
      return std::all_of(operands.begin(), operands.end(), [&](const Operand& operand) {
        return std::find(values.begin(), values.end(), operand) != values.end();
      });
    default:
      return false;  // Of texts only.
  }
}

}  // namespace

bool FidRule::Holds(const RowView& row) const {
  if (req_time_min != 0 && ReadIntegers(row, "req_time")[0] < req_time_min) return false;
  if (!has_actions.empty()) {
    const std::vector<std::int64_t> actions = ReadIntegers(row, "actions");
    const bool has_one = std::any_of(actions.begin(), actions.end(), [&](std::int64_t action) {
      return has_actions.count(action) != 0;
    });
    if (!has_one) return false;
  }
  if (filter_fids.empty() && has_fids.empty() && select_fids.empty() && select_slots.empty()) {
    return true;
  }
  bool has_one = has_fids.empty();
  std::unordered_set<std::uint64_t> selected;
  std::unordered_set<std::uint64_t> slots;
  for (const auto& [fid, slot] : row.ReadFids()) {
    if (filter_fids.count(fid) != 0) return false;
    has_one = has_one || has_fids.count(fid) != 0;
    if (select_fids.count(fid) != 0) selected.insert(fid);
    if (select_slots.count(slot) != 0) slots.insert(slot);
  }
  return has_one && selected.size() == select_fids.size() && slots.size() == select_slots.size();
}

Comparison FindComparison(std::string_view name) {
  for (std::size_t i = 0; i < std::size(kNames); ++i) {
    if (kNames[i] == name) return static_cast<Comparison>(i);
  }
  throw std::invalid_argument("There is no comparison '" + std::string(name) + "'.");
}

ValueRule::ValueRule(Comparison comparison, LineIdKind kind, Operands operands, bool keep_empty)
    : comparison_(comparison),
      kind_(kind),
      operands_(std::move(operands)),
      unsigned_(operands_.integers.begin(), operands_.integers.end()),
      keep_empty_(keep_empty) {
  const std::string name(kNames[static_cast<int>(comparison)]);
  const std::size_t needed = comparison == Comparison::kBetween ? 2 : 1;
  if (!TakesMany(comparison) && CountOperands() != needed) {
    throw std::invalid_argument("'" + name + "' takes " + std::to_string(needed) +
                                " operands, got " + std::to_string(CountOperands()) + ".");
  }
  const bool is_of_texts =
      comparison == Comparison::kStartsWith || comparison == Comparison::kEndsWith;
  if (is_of_texts && kind != LineIdKind::kString) {
    throw std::invalid_argument("'" + name + "' compares texts.");
  }
  if (!TakesMany(comparison)) return;
  std::sort(operands_.integers.begin(), operands_.integers.end());
  std::sort(operands_.floats.begin(), operands_.floats.end());
  std::sort(operands_.strings.begin(), operands_.strings.end());
  std::sort(unsigned_.begin(), unsigned_.end());
}

std::size_t ValueRule::CountOperands() const {
  switch (kind_) {
    case LineIdKind::kString:
      return operands_.strings.size();
    case LineIdKind::kFloat:
      return operands_.floats.size();
    default:
      return operands_.integers.size();
  }
}

bool ValueRule::Holds(const FieldValues& values) const {
  if (kind_ == LineIdKind::kString) {
    if (values.strings.empty()) return keep_empty_;
    const std::string_view text = values.strings[0];
    if (comparison_ == Comparison::kStartsWith) return StartsWith(text, operands_.strings[0]);
    if (comparison_ == Comparison::kEndsWith) return EndsWith(text, operands_.strings[0]);
    return Compare(comparison_, values.strings, operands_.strings);
  }
  if (kind_ == LineIdKind::kFloat) {
    return values.floats.empty() ? keep_empty_
                                 : Compare(comparison_, values.floats, operands_.floats);
  }
  if (values.integers.empty()) return keep_empty_;
  if (kind_ == LineIdKind::kInteger) {
    return Compare(comparison_, values.integers, operands_.integers);
  }
  const std::vector<std::uint64_t> found(values.integers.begin(), values.integers.end());
  return Compare(comparison_, found, unsigned_);
}

std::vector<float> AddLabels(const std::vector<LabelTask>& tasks, float negative,
                             const RowView& row, const Draw& draw) {
  const std::vector<std::int64_t> actions = ReadIntegers(row, "actions");
  std::vector<float> labels = row.labels();
  if (!labels.empty() && labels[0] <= 0) labels[0] = kInvalid;
  for (const LabelTask& task : tasks) {
    const bool is_known = task.negative.empty() || HasOne(task.negative, actions);
    if (HasOne(task.positive, actions)) {
      labels.push_back(1);
    } else if (is_known && draw() < task.rate) {
      labels.push_back(negative);
    } else {
      labels.push_back(kInvalid);
    }
  }
  return labels;
}

std::vector<float> ScatterRule::Apply(const RowView& row) const {
  std::vector<float> labels(num_labels, kInvalid);
  const auto found = index_of_channel.find(ReadIntegers(row, "chnid").front());
  if (found != index_of_channel.end() && !row.labels().empty()) {
    labels.at(found->second) = row.labels().front();
  }
  return labels;
}

bool SampleRule::Holds(const RowView& row, const Draw& draw) const {
  if (static_cast<std::size_t>(label_index) >= row.labels().size()) {
    throw std::invalid_argument("it has " + std::to_string(row.labels().size()) +
                                " labels, but `label_index` is " + std::to_string(label_index) +
                                "; correct it, or leave out rows without labels");
  }
  if (row.labels()[label_index] >= threshold) return true;
  double rate = drop_rate;
  if (!action_priority.empty()) {
    const std::vector<std::int64_t> actions = ReadIntegers(row, "actions");
    const auto decisive = std::find_first_of(action_priority.begin(), action_priority.end(),
                                             actions.begin(), actions.end());
    if (decisive != action_priority.end()) {
      const auto found = std::find(rate_actions.begin(), rate_actions.end(), *decisive);
      if (found != rate_actions.end()) rate = rates[found - rate_actions.begin()];
    }
  }
  return draw() >= rate;
}

}  // namespace monolith::core
