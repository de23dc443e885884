#include "core/embedding_table.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <mutex>
#include <shared_mutex>
#include <stdexcept>

#include "core/fair_shared_mutex.h"
#include "core/hash.h"
#include "core/row_summer.h"

namespace monolith::core {
namespace {

constexpr std::uint32_t kNoRow = RowStore::kNoRow;
static_assert(kNoRow == RowIndex::kNoRow);

// How many ids are located before the first of their rows is used: enough that the memory system
// always has work, few enough that the rows stay in the first-level cache.
constexpr std::size_t kIdsInFlight = 64;

// Ids that are ordered at a time: by one thread for itself, and for all threads of a call.
constexpr std::size_t kSliceIds = std::size_t{1} << 12;
constexpr std::size_t kSharedSliceIds = std::size_t{1} << 14;

constexpr std::size_t kCacheLine = 64;

std::uint32_t ToRowTime(std::int64_t sec) {
  constexpr std::int64_t kLast = std::numeric_limits<std::uint32_t>::max();
  return static_cast<std::uint32_t>(std::clamp<std::int64_t>(sec, 0, kLast));
}

// Rows are a few cache lines at most, where calling memcpy costs more than the copy.
inline void CopyFloats(const std::byte* from, std::size_t n, float* to) {
  const auto* source = reinterpret_cast<const float*>(from);
  std::size_t i = 0;
  for (; i + 4 <= n; i += 4) std::memcpy(to + i, source + i, 4 * sizeof(float));
  for (; i < n; ++i) to[i] = source[i];
}

// A function: a closure that runs on another thread would not initialize a variable beside it. Not
// inline: in a shared library the compiler would ask for the variable's address again for every id.
__attribute__((noinline)) Batch& SliceOfThisThread() {
  thread_local Batch slice;
  return slice;
}

__attribute__((noinline)) RowSummer& SummerOfThisThread() {
  thread_local RowSummer summer;
  return summer;
}

// Rows that wait for their step: taking many in one go costs less than one by one. The rows stay
// locked until TakeAll has been called.
class PendingSteps {
 public:
  PendingSteps(const EntryAccessor& accessor, const float* learning_rates, std::int64_t global_step)
      : accessor_(accessor), learning_rates_(learning_rates), global_step_(global_step) {}

  void Add(std::byte* row, const float* grad) {
    rows_[n_] = row;
    grads_[n_] = grad;
    __builtin_prefetch(grad);  // Gradients of ordered ids come from all over the batch.
    if (++n_ == kIdsInFlight) TakeAll();
  }
  void TakeAll() {
    accessor_.Optimize(n_, rows_, grads_, learning_rates_, global_step_);
    n_ = 0;
  }

 private:
  const EntryAccessor& accessor_;
  const float* const learning_rates_;
  const std::int64_t global_step_;
  std::size_t n_ = 0;
  std::byte* rows_[kIdsInFlight];
  const float* grads_[kIdsInFlight];
};

// The stripe behind the next ones that have so many ids together: enough to overlap cache misses.
std::size_t EndOfGroup(const Batch& batch, std::size_t first_stripe, std::size_t min_ids) {
  std::size_t last = first_stripe + 1;
  while (last < kStripes && batch.start(last) - batch.start(first_stripe) < min_ids) ++last;
  return last;
}

std::uint32_t CountAt(const WriteOptions& options, std::size_t position) {
  return options.counts == nullptr ? 1 : options.counts[position];
}

bool AllZero(const float* values, std::size_t n) {
  return std::all_of(values, values + n, [](float v) { return v == 0.0f; });
}

}  // namespace

struct alignas(kCacheLine) EmbeddingTable::Stripe {
  explicit Stripe(std::uint8_t number_in_table, BucketPool& pool)
      : number(number_in_table), index(pool) {}

  const std::uint8_t number;
  mutable FairSharedMutex mutex;
  RowIndex index;
  std::uint32_t free_row = kNoRow;   // Head of a list through the ids of free places.
  std::uint32_t fresh_row = kNoRow;  // Next place of the block that is being filled,
  std::uint32_t fresh_left = 0;      // and how many there are.
};

class EmbeddingTable::HashesOfRows final : public RowIndex::HashOfRow {
 public:
  explicit HashesOfRows(const RowStore& rows) : rows_(rows) {}
  std::uint64_t operator()(std::uint32_t row) const override { return rows_.Header(row)->hash; }
  void Prefetch(std::uint32_t row) const override { __builtin_prefetch(rows_.Header(row)); }

 private:
  const RowStore& rows_;
};

EmbeddingTable::EmbeddingTable(const EmbeddingHashTableConfig& config)
    : config_((ValidateTable(config), config)),
      accessor_(MakeEntryAccessor(config.entry_config)),
      dim_(accessor_->dim()),
      bytes_read_(sizeof(RowHeader) +
                  (accessor_->values_are_raw() ? dim_ * sizeof(float) : accessor_->row_bytes())),
      bytes_written_(sizeof(RowHeader) + accessor_->row_bytes()),
      expire_times_(config.slot_expire_time_config),
      rows_(accessor_->row_bytes()),
      hashes_of_rows_(std::make_unique<HashesOfRows>(rows_)) {
  for (std::size_t s = 0; s < kStripes; ++s) {
    stripes_[s] = std::make_unique<Stripe>(static_cast<std::uint8_t>(s), buckets_);
    stripes_[s]->index.Reserve(config.initial_capacity / kStripes, *hashes_of_rows_);
  }
}

EmbeddingTable::~EmbeddingTable() = default;

std::size_t EmbeddingTable::size() const {
  std::size_t total = 0;
  for (const auto& stripe : stripes_) {
    const std::shared_lock<FairSharedMutex> lock(stripe->mutex);
    total += stripe->index.size();
  }
  return total;
}

std::uint32_t EmbeddingTable::Find(const Stripe& stripe, std::uint64_t hash) const {
  return stripe.index.Find(hash,
                           [&](std::uint32_t row) { return rows_.Header(row)->hash == hash; });
}

std::uint32_t EmbeddingTable::Make(Stripe& stripe, std::uint64_t hash) {
  std::uint32_t row = stripe.free_row;
  if (row == kNoRow && stripe.fresh_left == 0) {
    stripe.fresh_row = rows_.AllocateBlock(stripe.number);
    stripe.fresh_left = RowStore::kBlockRows;
  }
  const bool reused = row != kNoRow;
  if (!reused) row = stripe.fresh_row;
  // First the index, which may run out of memory: nothing is taken yet then.
  stripe.index.Insert(hash, row, *hashes_of_rows_);
  RowHeader* header = rows_.Header(row);
  if (reused) {
    stripe.free_row = static_cast<std::uint32_t>(header->hash);
  } else {
    ++stripe.fresh_row;
    --stripe.fresh_left;
  }
  header->hash = hash;
  header->live = 1;
  header->last_update_sec = 0;
  return row;
}

void EmbeddingTable::Remove(Stripe& stripe, std::uint64_t hash, std::uint32_t row) {
  stripe.index.Erase(hash, row);
  RowHeader* header = rows_.Header(row);
  header->live = 0;
  header->hash = stripe.free_row;
  stripe.free_row = row;
}

void EmbeddingTable::RaiseMaxUpdateTime(std::int64_t sec) {
  std::int64_t seen = max_update_sec_.load(std::memory_order_relaxed);
  while (seen < sec && !max_update_sec_.compare_exchange_weak(seen, sec)) {
  }
}

// Locks the stripes [first, last) in rising order.
class EmbeddingTable::Locked {
 public:
  struct Shared {
    static void Acquire(FairSharedMutex& m) { m.lock_shared(); }
    static void Release(FairSharedMutex& m) { m.unlock_shared(); }
    static constexpr bool kWrites = false;
  };
  struct Exclusive {
    static void Acquire(FairSharedMutex& m) { m.lock(); }
    static void Release(FairSharedMutex& m) { m.unlock(); }
    static constexpr bool kWrites = true;
  };

  template <typename Lock>
  class Range {
   public:
    Range(const EmbeddingTable& table, std::size_t first, std::size_t last)
        : table_(table), first_(first), last_(last) {
      for (std::size_t s = first_; s < last_; ++s) Lock::Acquire(table_.stripes_[s]->mutex);
    }
    ~Range() {
      for (std::size_t s = first_; s < last_; ++s) Lock::Release(table_.stripes_[s]->mutex);
    }
    Range(const Range&) = delete;
    Range& operator=(const Range&) = delete;

   private:
    const EmbeddingTable& table_;
    const std::size_t first_;
    const std::size_t last_;
  };

  // Holds all stripes shared, or none if that would mean to wait for a writer.
  class AllSharedOrNone {
   public:
    explicit AllSharedOrNone(const EmbeddingTable& table) : table_(table) {
      while (held_ < kStripes && table_.stripes_[held_]->mutex.try_lock_shared()) ++held_;
      if (held_ < kStripes) Release();
    }
    ~AllSharedOrNone() { Release(); }
    AllSharedOrNone(const AllSharedOrNone&) = delete;
    AllSharedOrNone& operator=(const AllSharedOrNone&) = delete;

    explicit operator bool() const { return held_ == kStripes; }

   private:
    void Release() {
      while (held_ > 0) table_.stripes_[--held_]->mutex.unlock_shared();
    }

    const EmbeddingTable& table_;
    std::size_t held_ = 0;
  };
};

// Ids as the caller gave them.
struct EmbeddingTable::AsGiven {
  const std::int64_t* ids;
  [[nodiscard]] std::uint64_t hash(std::size_t i) const { return HashId(ids[i]); }
  [[nodiscard]] std::size_t position(std::size_t i) const { return i; }
};

// Ids by stripe.
struct EmbeddingTable::ByStripe {
  const Batch& batch;
  [[nodiscard]] std::uint64_t hash(std::size_t i) const { return batch[i].hash; }
  [[nodiscard]] std::size_t position(std::size_t i) const { return batch[i].position; }
};

// Ids whose rows were summed; positions are those in the sums.
struct EmbeddingTable::Summed {
  const RowSummer& sums;
  [[nodiscard]] std::uint64_t hash(std::size_t i) const { return sums.hash(i); }
  [[nodiscard]] std::size_t position(std::size_t i) const { return i; }
};

// Calls `on_locked(slice, first, end, first_position)` until every id has come once, on several
// threads if there are: the stripes of ids [first, end) of the slice are locked, and their
// positions count from `first_position`. Ids go slice by slice, so that what a slice needs stays in
// the cache and nobody waits for long.
template <typename Lock, typename OnLocked>
void EmbeddingTable::LockSliceBySlice(const std::int64_t* ids, std::size_t n,
                                      const Parallel* parallel, OnLocked&& on_locked) const {
  const auto lock_stripes = [&](const Batch& slice, std::size_t first_stripe,
                                std::size_t last_stripe, std::size_t first_position) {
    const std::size_t first = slice.start(first_stripe), end = slice.start(last_stripe);
    if (first == end) return;
    const typename Locked::template Range<Lock> lock(*this, first_stripe, last_stripe);
    on_locked(ByStripe{slice}, first, end, first_position);
  };
  const auto one_slice = [&](std::size_t i) {
    const std::size_t first = i * kSliceIds;
    const std::size_t count = std::min(kSliceIds, n - first);
    if constexpr (!Lock::kWrites) {
      // Nobody minds in which order rows are read. Where no writer is about, that saves ordering
      // the ids, and the output is written from front to back.
      if (const typename Locked::AllSharedOrNone lock(*this); lock) {
        on_locked(AsGiven{ids + first}, 0, count, first);
        return;
      }
    }
    Batch& slice = SliceOfThisThread();
    slice.Order(ids + first, count);
    for (std::size_t s = 0; s < kStripes;) {
      const std::size_t last = EndOfGroup(slice, s, kIdsInFlight);
      lock_stripes(slice, s, last, first);
      s = last;
    }
  };
  const std::size_t slices = (n + kSliceIds - 1) / kSliceIds;
  if (parallel == nullptr) {
    for (std::size_t i = 0; i < slices; ++i) one_slice(i);
  } else if constexpr (!Lock::kWrites) {
    RunOnThreads(*parallel, slices, one_slice);
  } else {
    // Equal ids must keep their order, so the threads share a slice and divide the stripes.
    for (std::size_t first = 0; first < n; first += kSharedSliceIds) {
      Batch& slice = SliceOfThisThread();
      slice.Order(ids + first, std::min(kSharedSliceIds, n - first), parallel);
      RunOnThreads(*parallel, kStripes,
                   [&](std::size_t s) { lock_stripes(slice, s, s + 1, first); });
    }
  }
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
  FoundRow guesses[kIdsInFlight];
  std::size_t late[kIdsInFlight];
  // Takes the first row in the bucket whose tag fits, and asks for it.
  const auto guess = [&](std::size_t i) {
    const std::uint32_t bits = homes[i]->Match(RowIndex::TagOf(hashes[i]));
    if (bits == 0) {
      guesses[i] = FoundRow();
      return false;
    }
    const std::uint32_t number = homes[i]->rows[__builtin_ctz(bits)];
    guesses[i] = {number, rows_.Header(number)};
    const auto* row = reinterpret_cast<const std::byte*>(guesses[i].header);
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
      FoundRow row = guesses[i];
      // The guess is wrong when another id shares the tag, the entry stands behind its second
      // bucket, or the id got or lost its row only a few ids ago. (The place of a lost row has the
      // number of another for its hash, which may look like the one we want.)
      if (row.header == nullptr || row.header->hash != hash ||
          (Lock::kWrites && row.header->live == 0)) {
        row.number = Find(stripe, hash);
        row.header = row.number == kNoRow ? nullptr : rows_.Header(row.number);
      }
      on_row(stripe, hash, ids.position(at + i), row);
    }
  }
}

bool EmbeddingTable::Contains(std::int64_t id) const {
  const std::uint64_t hash = HashId(id);
  const Stripe& stripe = *stripes_[StripeOf(hash)];
  const std::shared_lock<FairSharedMutex> lock(stripe.mutex);
  return Find(stripe, hash) != kNoRow;
}

std::size_t EmbeddingTable::Lookup(const std::int64_t* ids, std::size_t n, float* rows,
                                   const Parallel* parallel) const {
  std::atomic<std::size_t> misses{0};
  const bool raw = accessor_->values_are_raw();
  ForEachId<Locked::Shared>(ids, n, parallel,
                            [&](Stripe&, std::uint64_t, std::size_t position, FoundRow row) {
                              float* to = rows + position * dim_;
                              if (row.header == nullptr) {
                                std::fill_n(to, dim_, 0.0f);
                                misses.fetch_add(1, std::memory_order_relaxed);
                              } else if (raw) {
                                CopyFloats(row.data(), dim_, to);
                              } else {
                                accessor_->Read(row.data(), to);
                              }
                            });
  return n - misses.load();
}

void EmbeddingTable::LookupEntry(const std::int64_t* ids, std::size_t n,
                                 std::string* entries) const {
  ForEachId<Locked::Shared>(
      ids, n, nullptr, [&](Stripe&, std::uint64_t, std::size_t position, FoundRow row) {
        entries[position].clear();
        if (row.header == nullptr) return;
        accessor_->AppendDump(row.data(), /*with_id=*/false, 0, row.header->last_update_sec,
                              &entries[position]);
      });
}

template <typename Update>
void EmbeddingTable::Write(const std::int64_t* ids, std::size_t n, const WriteOptions& options,
                           Update&& update) {
  RaiseMaxUpdateTime(options.update_time_sec);
  ForEachId<Locked::Exclusive>(
      ids, n, options.parallel,
      [&](Stripe& stripe, std::uint64_t hash, std::size_t position, FoundRow row) {
        WriteRow(stripe, hash, row, CountAt(options, position), options,
                 [&](std::byte* data) { update(position, data); });
      });
}

// Makes the row if it is absent and the filter admits the id, which came `count` times; updates it.
template <typename Update>
void EmbeddingTable::WriteRow(Stripe& stripe, std::uint64_t hash, FoundRow row, std::uint32_t count,
                              const WriteOptions& options, Update&& update) {
  if (row.header == nullptr) {
    if (options.filter != nullptr && !options.filter->Admit(IdOfHash(hash), count)) return;
    row.header = rows_.Header(Make(stripe, hash));
    accessor_->Init(row.data());
  }
  update(row.data());
  row.header->last_update_sec = ToRowTime(options.update_time_sec);
}

void EmbeddingTable::Assign(const std::int64_t* ids, std::size_t n, const float* rows,
                            const WriteOptions& options) {
  if (!config_.skip_zero_embedding) {
    Write(ids, n, options, [&](std::size_t position, std::byte* row) {
      accessor_->Assign(rows + position * dim_, row);
    });
    return;
  }
  // A serving table that holds no zero rows: assigning zeros is removing. Ids go one by one, since
  // an id may come first with a value and then with zeros.
  for (std::size_t i = 0; i < n; ++i) {
    const float* values = rows + i * dim_;
    if (AllZero(values, dim_)) {
      Erase(ids + i, 1);
    } else {
      WriteOptions one = options;
      one.parallel = nullptr;
      one.counts = options.counts == nullptr ? nullptr : options.counts + i;
      Write(ids + i, 1, one, [&](std::size_t, std::byte* row) { accessor_->Assign(values, row); });
    }
  }
}

void EmbeddingTable::AssignAdd(const std::int64_t* ids, std::size_t n, const float* rows,
                               const WriteOptions& options) {
  Write(ids, n, options, [&](std::size_t position, std::byte* row) {
    accessor_->AssignAdd(rows + position * dim_, row);
  });
}

void EmbeddingTable::Optimize(const std::int64_t* ids, std::size_t n, const float* grads,
                              const float* learning_rates, std::int64_t global_step,
                              const WriteOptions& options) {
  RaiseMaxUpdateTime(options.update_time_sec);
  LockSliceBySlice<Locked::Exclusive>(
      ids, n, options.parallel,
      [&](const auto& slice, std::size_t first, std::size_t end, std::size_t first_position) {
        PendingSteps steps(*accessor_, learning_rates, global_step);
        WalkIds<Locked::Exclusive>(
            slice, first, end,
            [&](Stripe& stripe, std::uint64_t hash, std::size_t in_slice, FoundRow row) {
              const std::size_t position = first_position + in_slice;
              WriteRow(stripe, hash, row, CountAt(options, position), options,
                       [&](std::byte* data) { steps.Add(data, grads + position * dim_); });
            });
        steps.TakeAll();
      });
}

void EmbeddingTable::OptimizeSummed(const std::int64_t* ids, std::size_t n, const float* grads,
                                    const float* learning_rates, std::int64_t global_step,
                                    const WriteOptions& options) {
  RaiseMaxUpdateTime(options.update_time_sec);
  Batch& batch = SliceOfThisThread();
  batch.Order(ids, n, options.parallel);
  // Equal ids are in the same stripe, so each thread sums what it will need.
  const auto update = [&](std::size_t first_stripe, std::size_t last_stripe) {
    const std::size_t first = batch.start(first_stripe), end = batch.start(last_stripe);
    if (first == end) return;
    RowSummer& sums = SummerOfThisThread();
    sums.Reset(end - first, dim_);
    constexpr std::size_t kAhead = 8;
    for (std::size_t i = first; i < end; ++i) {
      const std::size_t soon = std::min(i + kAhead, end - 1);
      __builtin_prefetch(grads + batch[soon].position * dim_);
      sums.Add(batch[i].hash, grads + batch[i].position * dim_);
    }
    const Locked::Range<Locked::Exclusive> lock(*this, first_stripe, last_stripe);
    PendingSteps steps(*accessor_, learning_rates, global_step);
    WalkIds<Locked::Exclusive>(
        Summed{sums}, 0, sums.size(),
        [&](Stripe& stripe, std::uint64_t hash, std::size_t i, FoundRow row) {
          WriteRow(stripe, hash, row, sums.count(i), options,
                   [&](std::byte* data) { steps.Add(data, sums.row(i)); });
        });
    steps.TakeAll();
  };
  if (options.parallel != nullptr) {
    RunOnThreads(*options.parallel, kStripes, [&](std::size_t s) { update(s, s + 1); });
    return;
  }
  for (std::size_t s = 0; s < kStripes;) {
    const std::size_t last = EndOfGroup(batch, s, 2 * kIdsInFlight);  // Some will be equal.
    update(s, last);
    s = last;
  }
}

void EmbeddingTable::Reinitialize(const std::int64_t* ids, std::size_t n, std::int64_t now_sec,
                                  std::int32_t* status) {
  RaiseMaxUpdateTime(now_sec);
  ForEachId<Locked::Exclusive>(
      ids, n, nullptr, [&](Stripe& stripe, std::uint64_t hash, std::size_t position, FoundRow row) {
        status[position] = row.header == nullptr ? 0 : 1;
        if (row.header == nullptr) row.header = rows_.Header(Make(stripe, hash));
        accessor_->Init(row.data());
        row.header->last_update_sec = ToRowTime(now_sec);
      });
}

std::size_t EmbeddingTable::Erase(const std::int64_t* ids, std::size_t n) {
  std::size_t erased = 0;
  ForEachId<Locked::Exclusive>(ids, n, nullptr,
                               [&](Stripe& stripe, std::uint64_t hash, std::size_t, FoundRow row) {
                                 if (row.header == nullptr) return;
                                 Remove(stripe, hash, row.number);
                                 ++erased;
                               });
  return erased;
}

std::size_t EmbeddingTable::Evict(std::int64_t max_update_sec,
                                  std::vector<std::int64_t>* evicted_ids) {
  const std::shared_lock<std::shared_mutex> walk(walk_mutex_);
  std::size_t evicted = 0;
  for (std::uint64_t place = 0; place < num_places(); place += RowStore::kBlockRows) {
    const auto first = static_cast<std::uint32_t>(place);
    Stripe& stripe = *stripes_[rows_.OwnerOfBlock(first)];
    const std::unique_lock<FairSharedMutex> lock(stripe.mutex);
    for (std::uint32_t row = first; row < first + RowStore::kBlockRows; ++row) {
      const RowHeader* header = rows_.Header(row);
      if (header->live == 0 ||
          !expire_times_.Expired(IdOfHash(header->hash), header->last_update_sec, max_update_sec)) {
        continue;
      }
      if (evicted_ids != nullptr) evicted_ids->push_back(IdOfHash(header->hash));
      Remove(stripe, header->hash, row);
      ++evicted;
    }
  }
  return evicted;
}

void EmbeddingTable::Clear() {
  const std::unique_lock<std::shared_mutex> no_walk(walk_mutex_);
  const Locked::Range<Locked::Exclusive> lock(*this, 0, kStripes);
  for (const auto& stripe : stripes_) {
    stripe->index.Clear();
    stripe->free_row = kNoRow;
    stripe->fresh_row = kNoRow;
    stripe->fresh_left = 0;
  }
  rows_.Clear();
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
  ForEachId<Locked::Shared>(
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

void EmbeddingTable::Reserve(std::size_t rows) {
  for (const auto& stripe : stripes_) {
    const std::unique_lock<FairSharedMutex> lock(stripe->mutex);
    if (stripe->index.size() != 0) continue;
    stripe->index.Reserve(rows / kStripes, *hashes_of_rows_);
  }
}

void EmbeddingTable::Restore(const EntryDumpView* dumps, std::size_t n) {
  std::vector<std::int64_t> ids(n);
  std::int64_t max_update = 0;
  for (std::size_t i = 0; i < n; ++i) {
    if (!dumps[i].has_id) throw std::invalid_argument("A saved row has no id.");
    ids[i] = dumps[i].id;
    max_update = std::max(max_update, dumps[i].last_update_ts_sec);
  }
  std::vector<float> values(config_.skip_zero_embedding ? dim_ : 0);
  ForEachId<Locked::Exclusive>(
      ids.data(), n, nullptr,
      [&](Stripe& stripe, std::uint64_t hash, std::size_t position, FoundRow found) {
        const EntryDumpView& dump = dumps[position];
        std::uint32_t row = found.number;
        const bool is_new = row == kNoRow;
        if (is_new) row = Make(stripe, hash);
        try {
          accessor_->Restore(dump, rows_.Data(row));
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
  RaiseMaxUpdateTime(max_update);
}

std::size_t EmbeddingTable::MemoryBytes() const {
  std::size_t bytes = rows_.MemoryBytes() + buckets_.MemoryBytes();
  for (const auto& stripe : stripes_) {
    const std::shared_lock<FairSharedMutex> lock(stripe->mutex);
    bytes += sizeof(Stripe) + stripe->index.MemoryBytes();
  }
  return bytes;
}

std::string EmbeddingTable::DebugString() const {
  const std::size_t rows = size();
  const std::uint64_t places = num_places();
  const double load = places == 0 ? 0.0 : static_cast<double>(rows) / static_cast<double>(places);
  return "{\"accessor\": \"" + accessor_->DebugString() + "\", \"size\": " + std::to_string(rows) +
         ", \"memory\": " + std::to_string(MemoryBytes()) + ", \"memory_if_not_compressed\": " +
         std::to_string(rows * (dim_ * sizeof(float) + sizeof(RowHeader))) +
         ", \"load_factor\": " + std::to_string(load) + "}";
}

}  // namespace monolith::core
