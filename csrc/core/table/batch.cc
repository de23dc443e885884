#include "core/table/batch.h"

#include <algorithm>
#include <limits>
#include <stdexcept>

#include "core/table/hash.h"

namespace monolith::core {
namespace {

// A part is long enough to be worth handing over. Each looks at the counts of all others, so there
// are never many.
constexpr std::size_t kMinPartIds = std::size_t{1} << 12;
constexpr std::size_t kMaxParts = 64;

}  // namespace

void Batch::Order(const std::int64_t* ids, std::size_t n) {
  Reserve(n);
  for (std::size_t part = 0; part < num_parts(); ++part) Count(part, ids, n);
  for (std::size_t part = 0; part < num_parts(); ++part) Place(part, ids, n);
}

void Batch::Reserve(std::size_t max_ids) {
  if (max_ids > std::numeric_limits<std::uint32_t>::max()) {
    throw std::length_error("One call takes at most 2^32 - 1 ids; split the batch.");
  }
  part_ids_ = std::max(kMinPartIds, (max_ids + kMaxParts - 1) / kMaxParts);
  counts_.resize(std::max<std::size_t>(1, (max_ids + part_ids_ - 1) / part_ids_));
  if (entries_.size() < max_ids) entries_.resize(max_ids);
}

// A counting sort. Hashing in both passes is cheaper than keeping the hashes in between.
void Batch::Count(std::size_t part, const std::int64_t* ids, std::size_t n) {
  std::array<std::uint32_t, kStripes> counts{};
  const std::size_t end = std::min(n, (part + 1) * part_ids_);
  for (std::size_t i = part * part_ids_; i < end; ++i) ++counts[StripeOf(HashId(ids[i]))];
  counts_[part] = counts;
}

void Batch::Place(std::size_t part, const std::int64_t* ids, std::size_t n) {
  std::array<std::uint32_t, kStripes> next;
  std::uint32_t sum = 0;
  for (std::size_t s = 0; s < kStripes; ++s) {
    if (part == 0) starts_[s] = sum;
    for (std::size_t p = 0; p < num_parts(); ++p) {
      if (p == part) next[s] = sum;
      sum += counts_[p][s];
    }
  }
  if (part == 0) starts_[kStripes] = sum;
  Entry* const entries = entries_.data();
  const std::size_t end = std::min(n, (part + 1) * part_ids_);
  for (std::size_t i = part * part_ids_; i < end; ++i) {
    const std::uint64_t hash = HashId(ids[i]);
    entries[next[StripeOf(hash)]++] = {hash, static_cast<std::uint32_t>(i)};
  }
}

}  // namespace monolith::core
