// Equal ids of a batch brought together before they reach their rows.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace monolith::core {

// Sums rows over equal ids, which come as their hashes: no two ids share one.
// Keeps its memory from batch to batch.
class RowSummer {
 public:
  // Ready for at most `max_rows` rows of `dim` floats, and empty.
  void Reset(std::size_t max_rows, std::size_t dim) {
    std::size_t slots = 16;
    while (slots < 2 * max_rows) slots *= 2;  // At most half full: runs of slots are short.
    numbers_.assign(slots, kAbsent);
    if (entries_.size() < max_rows) entries_.resize(max_rows);
    size_ = 0;
    dim_ = dim;
    // At most every second row begins a sum. Never grows later, so that sums stay in their places.
    sums_.resize(std::max(sums_.size(), max_rows / 2 * dim));
    next_sum_ = sums_.data();
  }

  // `row` stays as it is and must outlive the result: that of an id that comes once is not copied.
  void Add(std::uint64_t hash, const float* row) {
    const std::size_t mask = numbers_.size() - 1;
    std::size_t slot = hash & mask;
    for (; numbers_[slot] != kAbsent; slot = (slot + 1) & mask) {
      Entry& entry = entries_[numbers_[slot]];
      if (entry.hash != hash) continue;
      if (entry.sum == nullptr) {
        entry.sum = next_sum_;
        next_sum_ += dim_;
        for (std::size_t d = 0; d < dim_; ++d) entry.sum[d] = entry.row[d] + row[d];
        entry.row = entry.sum;
      } else {
        for (std::size_t d = 0; d < dim_; ++d) entry.sum[d] += row[d];
      }
      ++entry.count;
      return;
    }
    numbers_[slot] = static_cast<std::uint32_t>(size_);
    // Member by member: a whole entry would be put together elsewhere first, then copied.
    Entry& entry = entries_[size_++];
    entry.hash = hash;
    entry.row = row;
    entry.sum = nullptr;
    entry.count = 1;
  }

  // The distinct ids, in the order in which they first came.
  [[nodiscard]] std::size_t size() const { return size_; }
  [[nodiscard]] std::uint64_t hash(std::size_t i) const { return entries_[i].hash; }
  [[nodiscard]] const float* row(std::size_t i) const { return entries_[i].row; }
  [[nodiscard]] std::uint32_t count(std::size_t i) const { return entries_[i].count; }

 private:
  static constexpr std::uint32_t kAbsent = 0xFFFFFFFFu;

  struct Entry {
    std::uint64_t hash;
    const float* row;
    float* sum;  // nullptr while there is only one row.
    std::uint32_t count;
  };

  std::vector<std::uint32_t> numbers_;  // Of entries, by slot; a power of two of them.
  std::vector<Entry> entries_;          // The first size_ of them.
  std::size_t size_ = 0;
  std::vector<float> sums_;
  float* next_sum_ = nullptr;
  std::size_t dim_ = 0;
};

}  // namespace monolith::core
