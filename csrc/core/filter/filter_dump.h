// The records in which a sliding filter is saved, one file per split.
//
// A file begins with one HashFilterSplitMetaDump; HashFilterSplitDataDump records of at most
// kCellsPerRecord cells follow in ascending order of their offset (messages of
// embedding_hash_table.proto). Records whose cells are all empty may be left out, except the last:
// its end tells a complete file from a truncated one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace monolith::core {

inline constexpr std::size_t kCellsPerRecord = 10000;

// The bytes are not what such a file holds.
class CorruptFilterDump : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The file was written by a filter of other dimensions.
class FilterDumpMismatch : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// SlidingHashFilterMetaDump: the same in the files of all splits.
struct SlidingHashFilterMeta {
  std::uint32_t split_num = 0;
  std::uint32_t max_forward_step = 0;
  std::uint32_t max_backward_step = 0;
  std::uint32_t max_step = 0;
  std::uint32_t head = 0;
  std::uint32_t head_increment = 0;
  std::uint64_t failure_count = 0;
};

// HashFilterSplitMetaDump.
struct HashFilterSplitMeta {
  std::uint64_t failure_count = 0;
  std::uint64_t total_size = 0;  // The split's capacity in ids.
  std::uint64_t num_elements = 0;
  double fill_rate = 0;
  SlidingHashFilterMeta sliding;
};

// HashFilterSplitDataDump.
struct HashFilterSplitData {
  std::size_t offset = 0;
  std::vector<std::uint32_t> cells;  // 16 bits each.
};

[[nodiscard]] std::string EncodeSplitMeta(const HashFilterSplitMeta& meta);
[[nodiscard]] std::string EncodeSplitData(const HashFilterSplitData& data);

// Both throw CorruptFilterDump.
[[nodiscard]] HashFilterSplitMeta DecodeSplitMeta(std::string_view record);
// `data` is overwritten; its memory is used again.
void DecodeSplitData(std::string_view record, HashFilterSplitData* data);

// Throws FilterDumpMismatch if a file with `read` does not fit a filter with `live`. Counts and the
// head may differ.
void CheckSameDimensions(const HashFilterSplitMeta& live, const HashFilterSplitMeta& read);

}  // namespace monolith::core
