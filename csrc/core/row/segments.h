// The segments of a training row, and what does not depend on how its values are stored.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/optimizer/optimizer.h"
#include "core/row/initializer.h"
#include "core/row/retriever.h"
#include "core/wire/entry_dump.h"

namespace monolith::core {

struct Segment {
  std::size_t dim;
  std::unique_ptr<Initializer> initializer;
  std::unique_ptr<Optimizer> optimizer;
  std::unique_ptr<Retriever> retriever;  // nullptr: values are read as they are.
  std::size_t value_offset = 0;          // Floats, before this segment's.
  std::size_t state_offset = 0;          // Bytes, from the start of the row.
};

[[nodiscard]] std::size_t TotalDim(const std::vector<Segment>& segments);

// Adds `values` to `sums`, which do not overlap.
void AddFloats(std::size_t dim, const float* values, float* sums);

// Throws std::invalid_argument unless the dump has `dim` values.
void RequireDim(const EntryDumpView& dump, std::size_t dim);

// Immutable: every method may be called from any thread. Rows are locked by the caller.
class Segments {
 public:
  // The states stand in the row behind `value_bytes` bytes of values, a multiple of 4.
  Segments(std::vector<Segment> segments, std::size_t value_bytes);

  [[nodiscard]] auto begin() const { return segments_.begin(); }
  [[nodiscard]] auto end() const { return segments_.end(); }
  [[nodiscard]] std::size_t size() const { return segments_.size(); }
  [[nodiscard]] const Segment& operator[](std::size_t i) const { return segments_[i]; }

  [[nodiscard]] std::size_t dim() const { return dim_; }
  [[nodiscard]] std::size_t row_bytes() const { return row_bytes_; }
  // Whether all values are read as they are.
  [[nodiscard]] bool are_read_as_they_are() const { return raw_; }
  [[nodiscard]] std::string DebugString() const;

  // Fresh states of all optimizers.
  void InitStates(std::byte* row) const;
  // Appends a serialized EntryDump of `values`, which are `dim` floats, and the row's states.
  void AppendDump(const void* values, const std::byte* row, bool with_id, std::int64_t id,
                  std::uint32_t last_update_sec, std::string* record) const;
  // The states of a dump. Throws std::invalid_argument if they are others than the row has.
  void RestoreStates(const EntryDumpView& dump, std::byte* row) const;

 private:
  [[nodiscard]] bool RestoreStatesAsWritten(std::string_view opt, std::byte* row) const;
  void RestoreState(const EntryDumpView& dump, const Segment& segment,
                    std::string_view single_optimizer_dump, std::byte* row) const;

  std::vector<Segment> segments_;
  std::size_t dim_ = 0;
  std::size_t row_bytes_ = 0;
  std::size_t num_dumps_ = 0;
  bool fixed_ = true;                // Whether the optimizers' part of every dump is equally long,
  std::size_t fixed_opt_bytes_ = 0;  // and how long.
  bool raw_ = true;
};

}  // namespace monolith::core
