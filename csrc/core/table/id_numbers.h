// Numbers the distinct ids of a batch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <utility>
#include <vector>

#include "core/table/hash.h"

namespace monolith::core {

// Gives each distinct id a number, 0 for the first, in the order in which they first come.
// Meant for one batch: nothing is ever removed. Not thread-safe, except for `Find`.
class IdNumbers {
 public:
  static constexpr std::uint32_t kAbsent = 0xFFFFFFFFu;

  // Ready for at most `max_ids` distinct ids, and empty. Throws std::length_error past 2^31.
  explicit IdNumbers(std::size_t max_ids) {
    if (max_ids > (std::size_t{1} << 31)) {
      throw std::length_error("A batch can have at most 2^31 ids.");
    }
    std::size_t slots = 16;
    while (slots < 2 * max_ids) slots *= 2;  // At most half full, so that runs of slots are short.
    numbers_.assign(slots, kAbsent);
    ids_.reserve(max_ids);
  }

  // Returns the number of `id`, which is `size()` as it was before if the id is new.
  std::uint32_t Add(std::int64_t id) {
    const std::size_t slot = SlotOf(id);
    if (numbers_[slot] == kAbsent) {
      numbers_[slot] = static_cast<std::uint32_t>(ids_.size());
      ids_.push_back(id);
    }
    return numbers_[slot];
  }

  // Returns the number of `id`, kAbsent if it was never added.
  [[nodiscard]] std::uint32_t Find(std::int64_t id) const { return numbers_[SlotOf(id)]; }

  [[nodiscard]] std::size_t size() const { return ids_.size(); }
  [[nodiscard]] const std::vector<std::int64_t>& ids() const { return ids_; }
  [[nodiscard]] std::vector<std::int64_t> TakeIds() && { return std::move(ids_); }

 private:
  // Where `id` is, or the free slot where it belongs.
  [[nodiscard]] std::size_t SlotOf(std::int64_t id) const {
    const std::size_t mask = numbers_.size() - 1;
    std::size_t slot = HashId(id) & mask;
    while (numbers_[slot] != kAbsent && ids_[numbers_[slot]] != id) slot = (slot + 1) & mask;
    return slot;
  }

  std::vector<std::uint32_t> numbers_;  // By slot; a power of two of them.
  std::vector<std::int64_t> ids_;       // By number.
};

}  // namespace monolith::core
