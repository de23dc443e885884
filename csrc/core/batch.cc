#include "core/batch.h"

#include <limits>
#include <stdexcept>

#include "core/hash.h"

namespace monolith::core {

void Batch::Order(const std::int64_t* ids, std::size_t n) {
  if (n > std::numeric_limits<std::uint32_t>::max()) {
    throw std::length_error("One call takes at most 2^32 - 1 ids; split the batch.");
  }
  // A counting sort. Hashing twice is cheaper than keeping the hashes in between.
  std::array<std::size_t, kStripes> next{};
  for (std::size_t i = 0; i < n; ++i) ++next[StripeOf(HashId(ids[i]))];
  std::size_t sum = 0;
  for (std::size_t s = 0; s < kStripes; ++s) {
    starts_[s] = sum;
    sum += next[s];
    next[s] = starts_[s];
  }
  starts_[kStripes] = sum;
  if (entries_.size() < n) entries_.resize(n);
  for (std::size_t i = 0; i < n; ++i) {
    const std::uint64_t hash = HashId(ids[i]);
    entries_[next[StripeOf(hash)]++] = {hash, static_cast<std::uint32_t>(i)};
  }
}

}  // namespace monolith::core
