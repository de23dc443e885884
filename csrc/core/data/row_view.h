// One serialized Instance or Example, read as far as filters of rows look at it.
//
// A row is changed without messages in between, too: what stays is copied as it is, and what is new
// stands behind it. Several parts of a LineId mean the same as one after the other in one.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/data/example_parser.h"
#include "core/data/line_id.h"

namespace monolith::core {

// The values of a field or a feature; those of one kind only are filled.
struct FieldValues {
  std::vector<std::int64_t> integers;
  std::vector<double> floats;
  std::vector<std::string_view> strings;  // Point into the row.
};

struct RowFid {
  std::uint64_t fid;
  std::uint64_t slot;
};

class RowView {
 public:
  // Throws std::invalid_argument if the bytes are no row.
  // `format` is an Instance or an Example. `row` outlives the view.
  RowView(RecordFormat format, std::string_view row);

  [[nodiscard]] const std::vector<float>& labels() const { return labels_; }

  // A single field that is not set has its default, a repeated one no values.
  [[nodiscard]] FieldValues ReadLineId(const LineIdField& field) const;

  // Numbers of the named feature of an Example as `kind` has them: kInteger, kFloat (also doubles)
  // or kString; none if there is no such feature. Throws std::invalid_argument if it holds others.
  [[nodiscard]] FieldValues ReadFeature(std::string_view name, LineIdKind kind) const;

  // All fids, as the row has them, with their slots.
  [[nodiscard]] std::vector<RowFid> ReadFids() const;

  // Returns the row with these labels in place of its own, and a LineId with more fields at its
  // end.
  [[nodiscard]] std::string Change(const std::vector<float>& labels,
                                   std::string_view more_line_id) const;

 private:
  [[nodiscard]] bool IsLineId(const WireField& field) const;

  RecordFormat format_;
  std::string_view row_;
  std::vector<float> labels_;
  std::vector<std::string_view> line_ids_;
};

}  // namespace monolith::core
