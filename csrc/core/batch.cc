#include "core/batch.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <utility>

#include "core/hash.h"

namespace monolith::core {
namespace {

// Ids that one thread counts and moves at a time: enough to be worth handing over.
constexpr std::size_t kPartIds = std::size_t{1} << 13;

}  // namespace

void Batch::Order(const std::int64_t* ids, std::size_t n, const Parallel* parallel) {
  if (n > std::numeric_limits<std::uint32_t>::max()) {
    throw std::length_error("One call takes at most 2^32 - 1 ids; split the batch.");
  }
  if (entries_.size() < n) entries_.resize(n);
  const std::size_t part_ids = parallel == nullptr ? n : kPartIds;
  const std::size_t parts = n == 0 ? 0 : (n + part_ids - 1) / part_ids;
  next_.resize(parts);
  const auto run = [&](auto&& work) {
    if (parts <= 1) {
      for (std::size_t part = 0; part < parts; ++part) work(part);
    } else {
      RunOnThreads(*parallel, parts, work);
    }
  };

  // A counting sort. Hashing twice is cheaper than keeping the hashes in between.
  run([&](std::size_t part) {
    ByStripe counts{};
    const std::size_t end = std::min(n, (part + 1) * part_ids);
    for (std::size_t i = part * part_ids; i < end; ++i) ++counts[StripeOf(HashId(ids[i]))];
    next_[part] = counts;
  });
  std::size_t sum = 0;
  for (std::size_t s = 0; s < kStripes; ++s) {
    starts_[s] = sum;
    for (ByStripe& next : next_) sum += std::exchange(next[s], sum);
  }
  starts_[kStripes] = sum;
  run([&](std::size_t part) {
    ByStripe next = next_[part];
    const std::size_t end = std::min(n, (part + 1) * part_ids);
    for (std::size_t i = part * part_ids; i < end; ++i) {
      const std::uint64_t hash = HashId(ids[i]);
      entries_[next[StripeOf(hash)]++] = {hash, static_cast<std::uint32_t>(i)};
    }
  });
}

}  // namespace monolith::core
