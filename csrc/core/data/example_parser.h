// Serialized Examples, ExampleBatches and Instances as columns of ids and numbers.
//
// One pass over the bytes, without messages in between: what nobody asked for is skipped, and ids
// are copied from the bytes straight to their column. A record that is damaged or does not fit is
// refused in one sentence and leaves no trace in the columns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/data/fid_buffer.h"
#include "core/data/line_id.h"
#include "core/data/name_order.h"
#include "core/wire/wire.h"

namespace monolith::core {

enum class RecordFormat { kInstance, kExample, kExampleBatch };
enum class DenseType { kFloat, kInt64, kString };

// A column with a fixed number of values per row, zeros or empty strings where a row has none.
struct DenseSpec {
  std::string name;
  std::int64_t width = 1;
  DenseType type = DenseType::kFloat;
  bool is_line_id = false;  // A field of the LineId, not a feature.
};

struct ParseSpec {
  RecordFormat format = RecordFormat::kExample;
  std::vector<std::string> sparse_names;
  // Of Instances: the v1 slot whose fids a sparse column takes, or -1 if it goes by name.
  std::vector<std::int64_t> sparse_slots;
  std::vector<DenseSpec> dense;
  bool convert_v1 = true;  // Whether fids of version 1 become version 2.
};

struct SparseColumn {
  FidBuffer values;
  std::vector<std::int64_t> ends;  // By row: where its values end.
};

// `strings` point into the records.
struct DenseColumn {
  std::vector<float> floats;
  std::vector<std::int64_t> integers;
  std::vector<std::string_view> strings;
};

// What one thread has parsed.
struct ParsedRows {
  std::vector<SparseColumn> sparse;
  std::vector<DenseColumn> dense;
  std::int64_t num_rows = 0;
  // Fids of Instances in slots that nobody has asked for, which are left out; and one such slot.
  std::int64_t num_unasked = 0;
  std::uint64_t unasked_slot = 0;

  NameOrder order;  // Of the features of Examples.
};

// Thread-safe: it is not changed by parsing.
class ExampleParser {
 public:
  // Throws std::invalid_argument if the spec is none.
  explicit ExampleParser(ParseSpec spec);
  ExampleParser(const ExampleParser&) = delete;
  ExampleParser& operator=(const ExampleParser&) = delete;

  [[nodiscard]] const ParseSpec& spec() const { return spec_; }
  [[nodiscard]] ParsedRows MakeRows() const;
  // Removes all rows, and keeps the memory for others.
  void Clear(ParsedRows* rows) const {
    Truncate(0, rows);
    rows->num_unasked = 0;
  }

  // Appends the row of a record, or the rows of an ExampleBatch. Throws std::invalid_argument, or
  // std::out_of_range where the specification wants that, and `rows` are what they were before.
  void Parse(std::string_view record, ParsedRows* rows) const;

  // The same for some columns of an ExampleBatch, every `num_parts`-th from number `part` on:
  // sparse ones first, dense ones behind them. The other columns are left undefined.
  void ParsePart(std::string_view record, std::int64_t part, std::int64_t num_parts,
                 ParsedRows* rows) const;

 private:
  // Columns beyond those that were asked for.
  static constexpr int kNobody = -1;
  static constexpr int kLineId = -2;

  void ParseInstance(std::string_view record, ParsedRows* rows) const;
  void ParseExample(std::string_view record, ParsedRows* rows) const;
  void ParseBatch(std::string_view record, std::int64_t part, std::int64_t num_parts,
                  ParsedRows* rows) const;
  void ParseColumn(int column, std::string_view name, std::string_view bytes, std::int64_t num_rows,
                   std::vector<bool>* seen, ParsedRows* rows) const;
  void AddNamedFeature(std::string_view bytes, std::int64_t row, NameOrder::Name** last,
                       ParsedRows* rows) const;
  void AddV1Fids(const WireField& field, ParsedRows* rows) const;
  void RepeatFirstRow(int column, std::int64_t num_rows, ParsedRows* rows) const;
  void AddIdlFeature(std::string_view feature, std::int64_t row, ParsedRows* rows) const;
  void AddFeature(int column, std::string_view feature, std::int64_t row, ParsedRows* rows) const;
  void AddOtherFeature(int column, std::string_view feature, std::int64_t row,
                       ParsedRows* rows) const;
  void AddFids(std::size_t column, std::string_view feature, ParsedRows* rows) const;
  void AddDense(std::size_t column, std::string_view feature, std::int64_t row,
                ParsedRows* rows) const;
  void AddLineId(std::string_view line_id, std::int64_t row, ParsedRows* rows) const;
  void AddLineIds(std::string_view feature, std::int64_t row, std::int64_t num_rows,
                  ParsedRows* rows) const;
  void OpenRows(std::int64_t count, ParsedRows* rows) const;
  void CloseRow(ParsedRows* rows) const;
  void Truncate(std::int64_t num_rows, ParsedRows* rows) const;
  [[nodiscard]] int FindColumn(std::string_view name) const;
  [[nodiscard]] std::string Describe(int column) const;

  ParseSpec spec_;
  // Names to columns: sparse ones first, dense ones behind them.
  std::unordered_map<std::string_view, int> columns_;
  std::vector<int> column_of_slot_;           // v1 slots; -1 if nobody reads it.
  std::vector<const LineIdField*> line_ids_;  // By dense column; null if it is a feature.
  int label_ = -1;                            // Numbers of dense columns with a source of their
  int weight_ = -1;                           // own, -1 if nobody reads them.
  bool reads_line_id_ = false;
};

// Inline: records have many features, and most are a few fids.
inline void ExampleParser::AddFeature(int column, std::string_view feature, std::int64_t row,
                                      ParsedRows* rows) const {
  if (column < 0) return;
  if (static_cast<std::size_t>(column) < rows->sparse.size() &&
      rows->sparse[column].values.AppendUsual(feature, spec_.convert_v1)) {
    return;
  }
  AddOtherFeature(column, feature, row, rows);
}

}  // namespace monolith::core
