#include "core/filter/hash_filter.h"

#include <algorithm>
#include <limits>
#include <new>
#include <stdexcept>
#include <string>

namespace monolith::core {
namespace {

template <typename Cell>
Cell* AllocateZeroed(std::size_t n) {
  return static_cast<Cell*>(std::calloc(n, sizeof(Cell)));
}

}  // namespace

template <typename Cell>
HashFilter<Cell>::HashFilter(std::size_t capacity, double fill_rate, std::size_t max_step)
    : capacity_(capacity), fill_rate_(fill_rate), max_step_(max_step) {
  const double positions = static_cast<double>(capacity) * fill_rate;
  // Files number the cells with 32 bits.
  if (!(positions >= 1 && positions < std::numeric_limits<std::uint32_t>::max() - kTailCells)) {
    throw std::invalid_argument("A filter of " + std::to_string(capacity) + " ids at fill rate " +
                                std::to_string(fill_rate) +
                                " would not have between 1 and 2^32 - 65 positions.");
  }
  if (max_step < 1 || max_step > kTailCells) {
    throw std::invalid_argument("max_step must be between 1 and 64, got " +
                                std::to_string(max_step) + ".");
  }
  num_positions_ = static_cast<std::size_t>(positions);
  cells_.reset(AllocateZeroed<Cell>(num_cells()));
  if (cells_ == nullptr) throw std::bad_alloc();
}

template <typename Cell>
std::uint32_t HashFilter<Cell>::Add(std::int64_t id, std::uint32_t n) {
  if (n == 0) return Get(id);
  Cell* cell = Find(id);
  if (cell == nullptr) {
    failure_count_.fetch_add(1, std::memory_order_relaxed);
    return kMaxCount;
  }
  if (*cell != 0) return Raise(cell, n);
  Occupy(cell, id, n);
  return 0;
}

template <typename Cell>
std::uint32_t HashFilter<Cell>::Get(std::int64_t id) const {
  const Cell* cell = Find(id);
  return cell == nullptr ? kMaxCount : Count(*cell);
}

template <typename Cell>
const Cell* HashFilter<Cell>::Find(std::int64_t id) const {
  const Cell* cell = cells_.get() + static_cast<std::uint64_t>(id) % num_positions_;
  const Cell* end = cell + max_step_;
  const std::uint64_t signature = Signature(id);
  for (; cell != end; ++cell) {
    if (*cell == 0 || *cell >> kCountBits == signature) return cell;
  }
  return nullptr;
}

template <typename Cell>
void HashFilter<Cell>::Occupy(Cell* cell, std::int64_t id, std::uint32_t count) {
  *cell = static_cast<Cell>(Signature(id) << kCountBits | std::min(count, kMaxCount));
  num_elements_.fetch_add(1, std::memory_order_relaxed);
}

template <typename Cell>
std::uint32_t HashFilter<Cell>::Raise(Cell* cell, std::uint32_t n) {
  const std::uint32_t old = Count(*cell);
  *cell = static_cast<Cell>(*cell + std::min(n, kMaxCount - old));
  return old;
}

template <typename Cell>
void HashFilter<Cell>::Clear() {
  if (num_elements() != 0) {
    // Fresh memory costs nothing until it is touched; overwriting a large filter would stop
    // everybody for as long as it takes.
    if (Cell* fresh = AllocateZeroed<Cell>(num_cells()); fresh != nullptr) {
      cells_.reset(fresh);
    } else {
      std::fill_n(cells_.get(), num_cells(), Cell{0});
    }
  }
  num_elements_.store(0, std::memory_order_relaxed);
  failure_count_.store(0, std::memory_order_relaxed);
}

template <typename Cell>
void HashFilter<Cell>::LoadCells(std::size_t offset, const std::uint32_t* cells, std::size_t n) {
  std::uint64_t loaded = 0;
  for (std::size_t i = 0; i < n; ++i) {
    if (cells[i] == 0) continue;  // Leaves untouched memory untouched.
    cells_[offset + i] = static_cast<Cell>(cells[i]);
    ++loaded;
  }
  num_elements_.fetch_add(loaded, std::memory_order_relaxed);
}

template class HashFilter<std::uint8_t>;
template class HashFilter<std::uint16_t>;

}  // namespace monolith::core
