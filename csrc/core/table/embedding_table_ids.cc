// Which ids a table has, for those who follow it.
#include <algorithm>

#include "core/table/embedding_table.h"
#include "core/table/embedding_table_walk.h"

namespace monolith::core {

void EmbeddingTable::LookupPresent(const std::int64_t* ids, std::size_t n, float* rows,
                                   std::uint8_t* present) const {
  ForEachId<ForReading>(ids, n, nullptr,
                        [&](Stripe&, std::uint64_t, std::size_t position, FoundRow row) {
                          present[position] = row.header != nullptr;
                          if (rows == nullptr || row.header == nullptr) return;
                          accessor_->Read(row.data(), rows + position * dim_);
                        });
}

std::uint64_t EmbeddingTable::ListIds(std::uint64_t place, std::uint64_t end, std::size_t max_ids,
                                      std::vector<std::int64_t>* ids) const {
  const std::shared_lock<std::shared_mutex> walk(walk_mutex_);
  end = std::min(end, num_places());
  std::size_t left = max_ids;
  while (left > 0 && place < end) {
    const auto row = static_cast<std::uint32_t>(place);
    const std::uint32_t block = row / RowStore::kBlockRows * RowStore::kBlockRows;
    const Stripe& stripe = *stripes_[rows_.OwnerOfBlock(block)];
    const std::shared_lock<FairSharedMutex> lock(stripe.mutex);
    const std::uint64_t last = std::min<std::uint64_t>(end, block + RowStore::kBlockRows);
    for (; place < last && left > 0; ++place) {
      const RowHeader* header = rows_.Header(static_cast<std::uint32_t>(place));
      if (header->live == 0) continue;
      ids->push_back(IdOfHash(header->hash));
      --left;
    }
  }
  return place;
}

}  // namespace monolith::core
