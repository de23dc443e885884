// The ids of one call, ordered by the stripe of the table they belong to.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/table/hash_parts.h"

namespace monolith::core {

// Equal ids keep their order, so whoever walks the batch applies them as the caller gave them.
class Batch {
 public:
  struct Entry {
    std::uint64_t hash;
    std::uint32_t position;  // In the caller's arrays.
  };

  // Throws std::length_error for more than 2^32 - 1 ids.
  void Order(const std::int64_t* ids, std::size_t n);

  // Several threads order a batch in parts: after Reserve, all parts are counted, then all placed,
  // each by any thread. Counting leaves alone what can be read from before.
  void Reserve(std::size_t max_ids);  // Throws like Order. There is at least one part.
  [[nodiscard]] std::size_t num_parts() const { return counts_.size(); }
  // The ids are [0, n), at most as many as reserved; the last parts may have none.
  void Count(std::size_t part, const std::int64_t* ids, std::size_t n);
  void Place(std::size_t part, const std::int64_t* ids, std::size_t n);

  // Entries of stripe s stand in [start(s), start(s + 1)).
  [[nodiscard]] std::size_t start(std::size_t stripe) const { return starts_[stripe]; }
  [[nodiscard]] const Entry* entries() const { return entries_.data(); }

 private:
  std::size_t part_ids_ = 0;
  std::vector<std::array<std::uint32_t, kStripes>> counts_;  // Of each part.
  std::array<std::size_t, kStripes + 1> starts_{};
  std::vector<Entry> entries_;
};

}  // namespace monolith::core
