// The ids of one call, ordered by the stripe of the table they belong to.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/on_threads.h"

namespace monolith::core {

// A table is cut into stripes by the top bits of the hash; each stripe has its own lock.
inline constexpr int kStripeBits = 6;
inline constexpr std::size_t kStripes = std::size_t{1} << kStripeBits;

[[nodiscard]] inline std::size_t StripeOf(std::uint64_t hash) {
  return static_cast<std::size_t>(hash >> (64 - kStripeBits));
}

// Equal ids keep their order, so whoever walks the batch applies them as the caller gave them.
class Batch {
 public:
  // Throws std::length_error for more than 2^32 - 1 ids.
  void Order(const std::int64_t* ids, std::size_t n, const Parallel* parallel = nullptr);

  // Entries of stripe s stand in [start(s), start(s + 1)).
  [[nodiscard]] std::size_t start(std::size_t stripe) const { return starts_[stripe]; }

  struct Entry {
    std::uint64_t hash;
    std::uint32_t position;  // In the caller's arrays.
  };
  [[nodiscard]] const Entry& operator[](std::size_t i) const { return entries_[i]; }

 private:
  using ByStripe = std::array<std::size_t, kStripes>;

  std::array<std::size_t, kStripes + 1> starts_{};
  std::vector<ByStripe> next_;  // For each part of the ids, where its next one goes.
  std::vector<Entry> entries_;
};

}  // namespace monolith::core
