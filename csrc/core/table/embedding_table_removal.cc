// How rows leave a table.
#include <mutex>
#include <shared_mutex>

#include "core/table/embedding_table.h"
#include "core/table/embedding_table_walk.h"

namespace monolith::core {

std::size_t EmbeddingTable::Erase(const std::int64_t* ids, std::size_t n) {
  std::size_t erased = 0;
  ForEachId<ForWriting>(ids, n, nullptr,
                        [&](Stripe& stripe, std::uint64_t hash, std::size_t, FoundRow row) {
                          if (row.header == nullptr) return;
                          Remove(stripe, hash, row.number);
                          ++erased;
                        });
  return erased;
}

// Removes the rows of which `goes(stripe, header)` is true; returns how many.
template <typename Goes>
std::size_t EmbeddingTable::RemoveWhere(Goes&& goes) {
  const std::shared_lock<std::shared_mutex> walk(walk_mutex_);
  std::size_t removed = 0;
  for (std::uint64_t place = 0; place < num_places(); place += RowStore::kBlockRows) {
    const auto first = static_cast<std::uint32_t>(place);
    Stripe& stripe = *stripes_[rows_.OwnerOfBlock(first)];
    const std::unique_lock<FairSharedMutex> lock(stripe.mutex);
    for (std::uint32_t row = first; row < first + RowStore::kBlockRows; ++row) {
      const RowHeader* header = rows_.Header(row);
      if (header->live == 0 || !goes(stripe, *header)) continue;
      Remove(stripe, header->hash, row);
      ++removed;
    }
  }
  return removed;
}

std::size_t EmbeddingTable::Evict(std::int64_t max_update_sec,
                                  std::vector<std::int64_t>* evicted_ids) {
  return RemoveWhere([&](Stripe& stripe, const RowHeader& header) {
    const std::int64_t id = IdOfHash(header.hash);
    if (!expire_times_.Expired(id, header.last_update_sec, max_update_sec)) return false;
    if (evicted_ids != nullptr) evicted_ids->push_back(id);
    ++stripe.expired;
    return true;
  });
}

std::size_t EmbeddingTable::EraseUnmarked(std::uint32_t mark) {
  max_update_sec_.store(0);
  return RemoveWhere([&](Stripe&, const RowHeader& header) { return header.live != mark; });
}

void EmbeddingTable::Clear() {
  const std::unique_lock<std::shared_mutex> no_walk(walk_mutex_);
  const LockedStripes<ForWriting> lock(stripes_, StripeSet(0, kStripes));
  for (const auto& stripe : stripes_) {
    stripe->index.Clear();
    stripe->free_row = kNoRow;
    stripe->fresh_row = kNoRow;
    stripe->fresh_left = 0;
  }
  rows_.Clear();
}

}  // namespace monolith::core
