// Counts how often ids were seen, in a few bits each and without storing the ids.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>

namespace monolith::core {

// A table of cells, each a signature of an id and a count that stops at kMaxCount:
//
//   cell = signature << kCountBits | count,   0 = empty
//
// An id's cell is the first one from its start position on that is empty or carries its signature.
// Two ids of equal signature whose probe ranges meet share a count: they may be admitted too early,
// which costs a row and nothing else.
//
// The start position is the id itself modulo the number of positions (std::hash of libstdc++), not
// a mixed hash: the signature is made of the bits 17 and up, so that ids which count from zero all
// have the same one and only their distinct positions keep them apart. Hashed ids spread anyway.
//
// Memory is zeroed by the operating system when first touched: a filter that could hold many ids
// costs what the ids seen so far need.
//
// Thread-compatible: calls for ids whose probe ranges do not
// meet may run at the same time; the counters are exact all the same. Clear and LoadCells run
// alone.
template <typename Cell>
class HashFilter {
 public:
  static constexpr unsigned kCountBits = 4;
  static constexpr std::uint32_t kMaxCount = (1u << kCountBits) - 1;
  static constexpr double kDefaultFillRate = 1.5;
  static constexpr std::size_t kDefaultMaxStep = 64;

  // Made for `capacity` ids, in `capacity * fill_rate` positions; looks at `max_step` cells, at
  // most 64. Throws std::invalid_argument if that makes no table, std::bad_alloc if it is too big.
  explicit HashFilter(std::size_t capacity, double fill_rate = kDefaultFillRate,
                      std::size_t max_step = kDefaultMaxStep);

  // Adds `n` occurrences and returns the count before. Returns kMaxCount, and counts a failure, if
  // all cells of the probe range belong to others. `n` of 0 only reads.
  std::uint32_t Add(std::int64_t id, std::uint32_t n);
  // The count of an id: 0 if it was never seen, kMaxCount if it has no cell.
  [[nodiscard]] std::uint32_t Get(std::int64_t id) const;

  // The cell of an id, empty or its own; nullptr if there is none.
  [[nodiscard]] const Cell* Find(std::int64_t id) const;
  [[nodiscard]] Cell* Find(std::int64_t id) {
    return const_cast<Cell*>(static_cast<const HashFilter*>(this)->Find(id));
  }
  // Takes the empty cell that Find returned for `id`, with a count of at least 1.
  void Occupy(Cell* cell, std::int64_t id, std::uint32_t count);
  // Adds to a cell that is not empty and returns its count before.
  static std::uint32_t Raise(Cell* cell, std::uint32_t n);
  [[nodiscard]] static std::uint32_t Count(Cell cell) { return cell & kMaxCount; }

  // Forgets everything.
  void Clear();
  // Replaces the cells from `offset` on; used on a filter that is still empty there.
  void LoadCells(std::size_t offset, const std::uint32_t* cells, std::size_t n);

  // Time to start another filter: one cell short of the capacity is in use.
  [[nodiscard]] bool full() const { return num_elements() + 1 >= capacity_; }
  [[nodiscard]] std::uint64_t num_elements() const {
    return num_elements_.load(std::memory_order_relaxed);
  }
  [[nodiscard]] std::uint64_t failure_count() const {
    return failure_count_.load(std::memory_order_relaxed);
  }
  [[nodiscard]] std::size_t capacity() const { return capacity_; }
  [[nodiscard]] double fill_rate() const { return fill_rate_; }
  [[nodiscard]] std::size_t max_step() const { return max_step_; }
  // An id's probe range begins at the id, read as unsigned, modulo this.
  [[nodiscard]] std::size_t num_positions() const { return num_positions_; }
  // All cells, including those behind the last position that its probe range needs.
  [[nodiscard]] const Cell* cells() const { return cells_.get(); }
  [[nodiscard]] std::size_t num_cells() const { return num_positions_ + kTailCells; }

 private:
  // The probe range of the last position ends here, however short `max_step` is: part of the file
  // format.
  static constexpr std::size_t kTailCells = 64;
  static constexpr std::uint64_t kSignatureMask = static_cast<Cell>(~Cell{0}) >> kCountBits;

  struct Free {
    void operator()(Cell* cells) const { std::free(cells); }
  };

  [[nodiscard]] static std::uint64_t Signature(std::int64_t id) {
    const auto fid = static_cast<std::uint64_t>(id);
    return (fid >> 17 | fid << 15) & kSignatureMask;
  }

  const std::size_t capacity_;
  const double fill_rate_;
  const std::size_t max_step_;
  std::size_t num_positions_ = 0;
  std::unique_ptr<Cell[], Free> cells_;
  std::atomic<std::uint64_t> num_elements_{0};
  std::atomic<std::uint64_t> failure_count_{0};
};

extern template class HashFilter<std::uint8_t>;
extern template class HashFilter<std::uint16_t>;

}  // namespace monolith::core
