#include "core/batch.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <utility>

#include "core/hash.h"

namespace monolith::core {
namespace {

void CheckPositions(std::size_t n) {
  if (n > std::numeric_limits<std::uint32_t>::max()) {
    throw std::length_error("One call takes at most 2^32 - 1 ids; split the batch.");
  }
}

using Places = std::array<std::uint32_t, kStripes>;

// A counting sort has two passes. Hashing in both is cheaper than keeping the hashes in between.
Places CountStripes(const std::int64_t* ids, std::size_t n) {
  Places counts{};
  for (std::size_t i = 0; i < n; ++i) ++counts[StripeOf(HashId(ids[i]))];
  return counts;
}

// Puts each id at the next place of its stripe. Positions count from `first_position`.
void PlaceByStripe(const std::int64_t* ids, std::size_t n, std::uint32_t first_position,
                   Places next, Batch::Entry* entries) {
  for (std::size_t i = 0; i < n; ++i) {
    const std::uint64_t hash = HashId(ids[i]);
    entries[next[StripeOf(hash)]++] = {hash, first_position + static_cast<std::uint32_t>(i)};
  }
}

}  // namespace

void Batch::Order(const std::int64_t* ids, std::size_t n) {
  CheckPositions(n);
  if (entries_.size() < n) entries_.resize(n);
  Places next = CountStripes(ids, n);
  std::uint32_t sum = 0;
  for (std::size_t s = 0; s < kStripes; ++s) {
    starts_[s] = sum;
    sum += std::exchange(next[s], sum);
  }
  starts_[kStripes] = sum;
  PlaceByStripe(ids, n, 0, next, entries_.data());
}

void SharedBatch::Reserve(std::size_t max_ids) {
  CheckPositions(max_ids);
  counts_.resize(std::max<std::size_t>(1, (max_ids + kPartIds - 1) / kPartIds));
  if (entries_.size() < max_ids) entries_.resize(max_ids);
}

void SharedBatch::Count(std::size_t part, const std::int64_t* ids, std::size_t n) {
  const std::size_t first = std::min(n, part * kPartIds);
  counts_[part] = CountStripes(ids + first, std::min(kPartIds, n - first));
}

void SharedBatch::Place(std::size_t part, const std::int64_t* ids, std::size_t n) {
  Places next;
  std::uint32_t sum = 0;
  for (std::size_t s = 0; s < kStripes; ++s) {
    if (part == 0) starts_[s] = sum;
    for (std::size_t p = 0; p < num_parts(); ++p) {
      if (p == part) next[s] = sum;
      sum += counts_[p][s];
    }
  }
  if (part == 0) starts_[kStripes] = sum;
  const std::size_t first = std::min(n, part * kPartIds);
  PlaceByStripe(ids + first, std::min(kPartIds, n - first), static_cast<std::uint32_t>(first), next,
                entries_.data());
}

}  // namespace monolith::core
