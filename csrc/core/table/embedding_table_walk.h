// How a table goes through the rows of many ids: what its parts share, for nobody else.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "core/table/embedding_table.h"
#include "core/table/hash.h"
#include "core/table/hash_parts.h"
#include "core/table/stripe.h"

namespace monolith::core {

inline constexpr std::uint32_t kNoRow = RowStore::kNoRow;
static_assert(kNoRow == RowIndex::kNoRow);

// How many ids are located before the first of their rows is used: enough that the memory system
// always has work, few enough that the rows stay in the first-level cache.
inline constexpr std::size_t kIdsInFlight = 64;

// Ids that are ordered at a time: by one thread for itself, and for all threads of a call.
inline constexpr std::size_t kSliceIds = std::size_t{1} << 12;
inline constexpr std::size_t kSharedSliceIds = std::size_t{1} << 14;

// Threads that read take slices down to this one.
inline constexpr std::size_t kShortSliceIds = std::size_t{1} << 10;

// So few ids are not worth being ordered, and a call of them locks their stripes alone, all at
// once.
inline constexpr std::size_t kFewIds = kIdsInFlight;

inline constexpr std::size_t kCacheLine = 64;

inline std::uint32_t ToRowTime(std::int64_t sec) {
  constexpr std::int64_t kLast = std::numeric_limits<std::uint32_t>::max();
  return static_cast<std::uint32_t>(std::clamp<std::int64_t>(sec, 0, kLast));
}

inline bool AllZero(const float* values, std::size_t n) {
  return std::all_of(values, values + n, [](float v) { return v == 0.0f; });
}

// What this thread is ordering, for itself or for all threads of its call. There are two.
Batch& BatchOfThisThread(std::size_t number);

// The stripe behind the next ones that have so many ids together: enough to overlap cache misses.
inline std::size_t EndOfGroup(const Batch& batch, std::size_t first_stripe, std::size_t min_ids) {
  std::size_t last = first_stripe + 1;
  while (last < kStripes && batch.start(last) - batch.start(first_stripe) < min_ids) ++last;
  return last;
}

// Ids as the caller gave them.
struct EmbeddingTable::AsGiven {
  const std::int64_t* ids;
  [[nodiscard]] std::uint64_t hash(std::size_t i) const { return HashId(ids[i]); }
  [[nodiscard]] std::size_t position(std::size_t i) const { return i; }
};

// Ids by stripe.
struct EmbeddingTable::ByStripe {
  const Batch::Entry* entries;
  [[nodiscard]] std::uint64_t hash(std::size_t i) const { return entries[i].hash; }
  [[nodiscard]] std::size_t position(std::size_t i) const { return entries[i].position; }
};

// Ids as the caller gave them, of which the hashes are known.
struct EmbeddingTable::Hashed {
  const std::uint64_t* hashes;
  [[nodiscard]] std::uint64_t hash(std::size_t i) const { return hashes[i]; }
  [[nodiscard]] std::size_t position(std::size_t i) const { return i; }
};

// Calls `on_locked(slice, first, end, first_position)` until every id has come once, on several
// threads if there are: the stripes of ids [first, end) of the slice are locked, and their
// positions count from `first_position`. Ids go slice by slice, so that what a slice needs stays in
// the cache and nobody waits for long.
template <typename Lock, typename OnLocked>
void EmbeddingTable::LockSliceBySlice(const std::int64_t* ids, std::size_t n,
                                      const Parallel* parallel, OnLocked&& on_locked) const {
  if (n <= kFewIds) {
    if (n == 0) return;
    std::uint64_t hashes[kFewIds];
    StripeSet stripes;
    for (std::size_t i = 0; i < n; ++i) {
      hashes[i] = HashId(ids[i]);
      stripes.Add(StripeOf(hashes[i]));
    }
    const LockedStripes<Lock> lock(stripes_, stripes);
    on_locked(Hashed{hashes}, 0, n, 0);
    return;
  }
  const auto one_slice = [&](std::size_t first_position, std::size_t end_position) {
    const std::int64_t* const slice_ids = ids + first_position;
    const std::size_t count = end_position - first_position;
    if constexpr (!Lock::kWrites) {
      // Nobody minds in which order rows are read. Where no writer is about, that saves ordering
      // the ids, and the output is written from front to back.
      if (const AllStripesOrNone lock(stripes_); lock) {
        on_locked(AsGiven{slice_ids}, 0, count, first_position);
        return;
      }
    }
    Batch& slice = BatchOfThisThread(0);
    slice.Order(slice_ids, count);
    for (std::size_t s = 0; s < kStripes;) {
      const std::size_t last = EndOfGroup(slice, s, kIdsInFlight);
      const std::size_t first = slice.start(s), end = slice.start(last);
      if (first < end) {
        const LockedStripes<Lock> lock(stripes_, StripeSet(s, last));
        on_locked(ByStripe{slice.entries()}, first, end, first_position);
      }
      s = last;
    }
  };
  if (parallel == nullptr) {
    for (std::size_t at = 0; at < n; at += kSliceIds) one_slice(at, std::min(at + kSliceIds, n));
  } else if constexpr (!Lock::kWrites) {
    RunOnRanges(*parallel, n, kShortSliceIds, kSliceIds, one_slice);
  } else {
    ShareSlices<Lock>(ids, n, *parallel, on_locked);
  }
}

// Equal ids must keep their order, so threads that write share a slice and divide its stripes.
// Meanwhile the next slice is placed and the one after it counted: whoever finds no stripe left has
// something to do.
template <typename Lock, typename OnLocked>
void EmbeddingTable::ShareSlices(const std::int64_t* ids, std::size_t n, const Parallel& parallel,
                                 OnLocked&& on_locked) const {
  Batch* const batches[] = {&BatchOfThisThread(0), &BatchOfThisThread(1)};
  for (Batch* batch : batches) batch->Reserve(kSharedSliceIds);
  const std::size_t parts = batches[0]->num_parts();
  const std::size_t slices = (n + kSharedSliceIds - 1) / kSharedSliceIds;
  // Before the first there is none either: numbers below 0 wrap around.
  const auto exists = [&](std::size_t slice) { return slice < slices; };
  const auto pieces_of = [&](std::size_t stage) {
    return (exists(stage - 2) ? kStripes : 0) + (exists(stage - 1) ? parts : 0) +
           (exists(stage) ? parts : 0);
  };
  const auto ids_of = [&](std::size_t slice) { return ids + slice * kSharedSliceIds; };
  const auto size_of = [&](std::size_t slice) {
    return std::min(kSharedSliceIds, n - slice * kSharedSliceIds);
  };
  RunInStages(parallel, slices + 2, pieces_of, [&](std::size_t stage, std::size_t piece) {
    if (const std::size_t slice = stage - 2; exists(slice)) {
      if (piece < kStripes) {
        const Batch& batch = *batches[slice % 2];
        const std::size_t first = batch.start(piece), end = batch.start(piece + 1);
        if (first == end) return;
        const LockedStripes<Lock> lock(stripes_, StripeSet(piece, piece + 1));
        on_locked(ByStripe{batch.entries()}, first, end, slice * kSharedSliceIds);
        return;
      }
      piece -= kStripes;
    }
    if (const std::size_t slice = stage - 1; exists(slice)) {
      if (piece < parts) {
        batches[slice % 2]->Place(piece, ids_of(slice), size_of(slice));
        return;
      }
      piece -= parts;
    }
    batches[stage % 2]->Count(piece, ids_of(stage), size_of(stage));
  });
}

// Calls `on_row(stripe, hash, position, row)` for every id, under the stripe's lock; `row` has no
// header where the id has no row.
template <typename Lock, typename OnRow>
void EmbeddingTable::ForEachId(const std::int64_t* ids, std::size_t n, const Parallel* parallel,
                               OnRow&& on_row) const {
  LockSliceBySlice<Lock>(
      ids, n, parallel,
      [&](const auto& slice, std::size_t first, std::size_t end, std::size_t first_position) {
        WalkIds<Lock>(slice, first, end,
                      [&](Stripe& stripe, std::uint64_t hash, std::size_t position, FoundRow row) {
                        on_row(stripe, hash, first_position + position, row);
                      });
      });
}

// The work goes in passes over a handful of ids, so that their cache misses overlap: ask for the
// buckets, ask for the rows, use the rows. Rows that found no place in their first bucket take one
// pass more, through the second. The stripes of the ids are locked.
//
// Tried for lookups and dropped, on 10^7 rows of dim 16: three flights of 8 ids, each a pass behind
// the one before. In ten pairs of runs, uniform ids took 0.87 of the time (45 ns), but Zipf ids
// with Adagrad's rows 1.11 (of 22 ns), up to 1.4 while others used the memory. Flights of 4 and 6
// lose more on Zipf ids, of 12 and more gain nothing on uniform ones; nor do single passes over 32
// ids, or copies of a fixed 16 floats. Writes cannot overlap flights at all: a row that is made may
// move the buckets that later ids have asked for.
template <typename Lock, typename Ids, typename OnRow>
void EmbeddingTable::WalkIds(const Ids& ids, std::size_t first, std::size_t end,
                             OnRow&& on_row) const {
  const std::size_t used_bytes = Lock::kWrites ? bytes_written_ : bytes_read_;
  // Rows start at multiples of their alignment, so steps of a cache line up to here, and the last
  // byte, touch all lines of a row. Asking for its last one twice would cost a twentieth of a
  // lookup.
  const std::size_t last_line = used_bytes - std::min(used_bytes, rows_.alignment());
  std::uint64_t hashes[kIdsInFlight];
  const IndexBucket* homes[kIdsInFlight];
  RowHeader* headers[kIdsInFlight];     // Of the rows that may be those of the ids, or null,
  std::uint32_t numbers[kIdsInFlight];  // and their numbers.
  std::size_t late[kIdsInFlight];
  // Takes the first row in the bucket whose tag fits, and asks for it.
  const auto guess = [&](std::size_t i) {
    const std::uint32_t bits = homes[i]->Match(TagOf(hashes[i]));
    if (bits == 0) {
      headers[i] = nullptr;
      return false;
    }
    numbers[i] = homes[i]->rows[__builtin_ctz(bits)];
    headers[i] = rows_.Header(numbers[i]);
    const auto* row = reinterpret_cast<const std::byte*>(headers[i]);
    __builtin_prefetch(row, Lock::kWrites ? 1 : 0);
    for (std::size_t at_byte = kCacheLine; at_byte < last_line; at_byte += kCacheLine) {
      __builtin_prefetch(row + at_byte, Lock::kWrites ? 1 : 0);
    }
    __builtin_prefetch(row + used_bytes - 1, Lock::kWrites ? 1 : 0);
    return true;
  };
  for (std::size_t at = first; at < end; at += kIdsInFlight) {
    const std::size_t count = std::min(kIdsInFlight, end - at);
    for (std::size_t i = 0; i < count; ++i) {
      hashes[i] = ids.hash(at + i);
      homes[i] = stripes_[StripeOf(hashes[i])]->index.Home(hashes[i]);
      __builtin_prefetch(homes[i]);
    }
    std::size_t num_late = 0;
    for (std::size_t i = 0; i < count; ++i) {
      if (guess(i) || homes[i]->passed_by == 0) continue;
      homes[i] = stripes_[StripeOf(hashes[i])]->index.Second(hashes[i]);
      __builtin_prefetch(homes[i]);
      late[num_late++] = i;
    }
    for (std::size_t i = 0; i < num_late; ++i) guess(late[i]);
    for (std::size_t i = 0; i < count; ++i) {
      const std::uint64_t hash = hashes[i];
      Stripe& stripe = *stripes_[StripeOf(hash)];
      FoundRow row;
      // The guess is wrong when another id shares the tag, the entry stands behind its second
      // bucket, or the id got or lost its row only a few ids ago. (The place of a lost row has the
      // number of another for its hash, which may look like the one we want.)
      if (headers[i] == nullptr || headers[i]->hash != hash ||
          (Lock::kWrites && headers[i]->live == 0)) {
        row.number = Find(stripe, hash);
        row.header = row.number == kNoRow ? nullptr : rows_.Header(row.number);
      } else {
        row = {numbers[i], headers[i]};
      }
      on_row(stripe, hash, ids.position(at + i), row);
    }
  }
}

}  // namespace monolith::core
