// A table's rows as EntryDumps, and back.
#include <algorithm>
#include <limits>
#include <stdexcept>

#include "core/table/embedding_table.h"
#include "core/table/embedding_table_walk.h"

namespace monolith::core {
namespace {

// The ids of dumps that are to be restored.
std::vector<std::int64_t> IdsOf(const EntryDumpView* dumps, std::size_t n) {
  std::vector<std::int64_t> ids(n);
  for (std::size_t i = 0; i < n; ++i) {
    if (!dumps[i].has_id) throw std::invalid_argument("A saved row has no id.");
    ids[i] = dumps[i].id;
  }
  return ids;
}

void RestoreRow(const EntryAccessor& accessor, const EntryDumpView& dump, bool values_only,
                std::byte* row) {
  if (values_only) {
    accessor.RestoreValues(dump, row);
  } else {
    accessor.Restore(dump, row);
  }
}

}  // namespace

void EmbeddingTable::LookupEntry(const std::int64_t* ids, std::size_t n,
                                 std::string* entries) const {
  ForEachId<ForReading>(ids, n, nullptr,
                        [&](Stripe&, std::uint64_t, std::size_t position, FoundRow row) {
                          entries[position].clear();
                          if (row.header == nullptr) return;
                          accessor_->AppendDump(row.data(), /*with_id=*/false, 0,
                                                row.header->last_update_sec, &entries[position]);
                        });
}

std::uint64_t EmbeddingTable::Dump(std::uint64_t place, std::uint64_t end, std::size_t max_rows,
                                   const Expiry* expiry, DumpedRows* dumped) const {
  const std::shared_lock<std::shared_mutex> walk(walk_mutex_);
  std::size_t left = max_rows;
  while (left > 0 && place < end && place < num_places()) {
    const auto row = static_cast<std::uint32_t>(place);
    const std::uint32_t block = row / RowStore::kBlockRows * RowStore::kBlockRows;
    const Stripe& stripe = *stripes_[rows_.OwnerOfBlock(block)];
    const std::shared_lock<FairSharedMutex> lock(stripe.mutex);
    const std::uint64_t block_end = std::min<std::uint64_t>(block + RowStore::kBlockRows, end);
    for (; place < block_end && left > 0; ++place) {
      const auto at = static_cast<std::uint32_t>(place);
      const RowHeader* header = rows_.Header(at);
      if (header->live == 0) continue;
      if (expiry != nullptr && expiry->times->Expired(IdOfHash(header->hash),
                                                      header->last_update_sec, expiry->now_sec)) {
        continue;
      }
      accessor_->AppendDump(rows_.Data(at), /*with_id=*/true, IdOfHash(header->hash),
                            header->last_update_sec, &dumped->bytes);
      dumped->ends.push_back(dumped->bytes.size());
      --left;
    }
  }
  return std::min(place, end);
}

void EmbeddingTable::DumpIds(const std::int64_t* ids, std::size_t n, const Expiry* expiry,
                             DumpedRows* dumped) const {
  ForEachId<ForReading>(
      ids, n, nullptr, [&](Stripe&, std::uint64_t, std::size_t position, FoundRow row) {
        const std::int64_t id = ids[position];
        if (row.header == nullptr ||
            (expiry != nullptr &&
             expiry->times->Expired(id, row.header->last_update_sec, expiry->now_sec))) {
          AppendRemovedEntry(id, &dumped->bytes);
        } else {
          accessor_->AppendDump(row.data(), /*with_id=*/true, id, row.header->last_update_sec,
                                &dumped->bytes);
        }
        dumped->ends.push_back(dumped->bytes.size());
      });
}

void EmbeddingTable::Restore(const EntryDumpView* dumps, std::size_t n, std::int64_t newest_sec,
                             bool values_only) {
  const std::vector<std::int64_t> ids = IdsOf(dumps, n);
  std::int64_t max_update = 0;
  for (std::size_t i = 0; i < n; ++i) {
    max_update = std::max(max_update, dumps[i].last_update_ts_sec);
  }
  std::vector<float> values(config_.skip_zero_embedding ? dim_ : 0);
  ForEachId<ForWriting>(
      ids.data(), n, nullptr,
      [&](Stripe& stripe, std::uint64_t hash, std::size_t position, FoundRow found) {
        const EntryDumpView& dump = dumps[position];
        std::uint32_t row = found.number;
        const bool is_new = row == kNoRow;
        if (is_new) row = Make(stripe, hash);
        try {
          RestoreRow(*accessor_, dump, values_only, rows_.Data(row));
        } catch (...) {
          Remove(stripe, hash, row);
          throw;
        }
        rows_.Header(row)->last_update_sec = ToRowTime(dump.last_update_ts_sec);
        if (config_.skip_zero_embedding) {
          accessor_->Read(rows_.Data(row), values.data());
          if (AllZero(values.data(), dim_)) Remove(stripe, hash, row);
        }
      });
  RaiseMaxUpdateTime(std::min(max_update, newest_sec));
}

std::uint32_t EmbeddingTable::NewMark() {
  constexpr std::uint32_t kFirst = 2;  // 0 and 1 have a meaning.
  return kFirst + num_marks_.fetch_add(1) % (std::numeric_limits<std::uint32_t>::max() - kFirst);
}

void EmbeddingTable::Mark(const EntryDumpView* dumps, std::size_t n, std::uint32_t mark,
                          bool values_only) {
  const std::vector<std::int64_t> ids = IdsOf(dumps, n);
  std::vector<std::uint64_t> scratch(accessor_->row_bytes() / sizeof(std::uint64_t) + 1);
  for (std::size_t i = 0; i < n; ++i) {
    RestoreRow(*accessor_, dumps[i], values_only, reinterpret_cast<std::byte*>(scratch.data()));
  }
  ForEachId<ForWriting>(ids.data(), n, nullptr,
                        [&](Stripe&, std::uint64_t, std::size_t, FoundRow row) {
                          if (row.header != nullptr) row.header->live = mark;
                        });
}

}  // namespace monolith::core
