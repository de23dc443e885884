#include "core/table/embedding_table.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <shared_mutex>
#include <utility>

#include "core/table/embedding_table_walk.h"
#include "core/table/row_summer.h"

namespace monolith::core {
namespace {

// Of a capacity that is only hoped for, a table takes no more: about 150 MB of index. Past it, an
// index grows segment by segment, as one does that reserved nothing.
constexpr std::uint64_t kMaxReservedRows = std::uint64_t{1} << 24;

// Rows are a few cache lines at most, where calling memcpy costs more than the copy.
inline void CopyFloats(const float* from, std::size_t n, float* to) {
  std::size_t i = 0;
  for (; i + 4 <= n; i += 4) std::memcpy(to + i, from + i, 4 * sizeof(float));
  for (; i < n; ++i) to[i] = from[i];
}

__attribute__((noinline)) RowSummer& SummerOfThisThread() {
  thread_local RowSummer summer;
  return summer;
}

// Rows that wait for their step: taking many in one go costs less than one by one. A row gets the
// new time with its step, never without.
class PendingSteps {
 public:
  PendingSteps(const EntryAccessor& accessor, const float* learning_rates, std::int64_t global_step,
               std::int64_t update_time_sec)
      : accessor_(accessor),
        learning_rates_(learning_rates),
        global_step_(global_step),
        row_time_(ToRowTime(update_time_sec)) {}

  // Calls `add_all`, which calls Add for rows that are locked, and takes all steps before it
  // returns. If `add_all` throws, for want of memory for a row, the rows before that one have taken
  // their steps.
  template <typename AddAll>
  void TakeStepsOf(AddAll&& add_all) {
    try {
      add_all();
    } catch (...) {
      TakeAll();
      throw;
    }
    TakeAll();
  }

  void Add(RowHeader* header, const float* grad) {
    rows_[n_] = reinterpret_cast<std::byte*>(header + 1);
    grads_[n_] = grad;
    __builtin_prefetch(grad);  // Gradients of ordered ids come from all over the batch.
    if (++n_ == kIdsInFlight) TakeAll();
  }

 private:
  // Not inline: it is called in three places, once for many rows.
  __attribute__((noinline)) void TakeAll() {
    const std::size_t n = std::exchange(n_, 0);  // First: no step is taken again if one throws.
    accessor_.Optimize(n, rows_, grads_, learning_rates_, global_step_);
    for (std::size_t i = 0; i < n; ++i) {
      (reinterpret_cast<RowHeader*>(rows_[i]) - 1)->last_update_sec = row_time_;
    }
  }

  const EntryAccessor& accessor_;
  const float* const learning_rates_;
  const std::int64_t global_step_;
  const std::uint32_t row_time_;
  std::size_t n_ = 0;
  std::byte* rows_[kIdsInFlight];
  const float* grads_[kIdsInFlight];
};

std::uint32_t CountAt(const WriteOptions& options, std::size_t position) {
  return options.counts == nullptr ? 1 : options.counts[position];
}

// The row of the gradients that belongs to an id.
std::size_t GradientOf(const WriteOptions& options, std::size_t position) {
  return options.gradient_of == nullptr ? position : options.gradient_of[position];
}

}  // namespace

// A function: a closure that runs on another thread would not initialize a variable beside it. Not
// inline: in a shared library the compiler would ask for the variable's address again for every id.
__attribute__((noinline)) Batch& BatchOfThisThread(std::size_t number) {
  thread_local Batch batches[2];
  return batches[number];
}

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
      bytes_read_(sizeof(RowHeader) + accessor_->value_bytes()),
      bytes_written_(sizeof(RowHeader) + accessor_->row_bytes()),
      expire_times_(config.slot_expire_time_config),
      rows_(accessor_->row_bytes()),
      hashes_of_rows_(std::make_unique<HashesOfRows>(rows_)) {
  for (std::size_t s = 0; s < kStripes; ++s) {
    stripes_[s] = std::make_unique<Stripe>(static_cast<std::uint8_t>(s), buckets_);
  }
  Reserve(std::min<std::uint64_t>(config.initial_capacity, kMaxReservedRows));
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

// Ids whose rows were summed; positions are those in the sums.
struct EmbeddingTable::Summed {
  const RowSummer& sums;
  [[nodiscard]] std::uint64_t hash(std::size_t i) const { return sums.hash(i); }
  [[nodiscard]] std::size_t position(std::size_t i) const { return i; }
};

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
  ForEachId<ForReading>(ids, n, parallel,
                        [&](Stripe&, std::uint64_t, std::size_t position, FoundRow row) {
                          float* to = rows + position * dim_;
                          if (row.header == nullptr) {
                            std::fill_n(to, dim_, 0.0f);
                            misses.fetch_add(1, std::memory_order_relaxed);
                          } else if (raw) {
                            CopyFloats(reinterpret_cast<const float*>(row.data()), dim_, to);
                          } else {
                            accessor_->Read(row.data(), to);
                          }
                        });
  return n - misses.load();
}

template <typename Update>
void EmbeddingTable::Write(const std::int64_t* ids, std::size_t n, const WriteOptions& options,
                           Update&& update) {
  RaiseMaxUpdateTime(options.update_time_sec);
  const std::uint32_t row_time = ToRowTime(options.update_time_sec);
  ForEachId<ForWriting>(
      ids, n, options.parallel,
      [&](Stripe& stripe, std::uint64_t hash, std::size_t position, FoundRow row) {
        if (!MakeIfAbsent(stripe, hash, CountAt(options, position), options.filter, &row)) return;
        update(position, row.data());
        row.header->last_update_sec = row_time;
      });
}

// Makes the row if it is absent and the filter admits the id, which came `count` times. Returns
// whether there is a row then.
inline bool EmbeddingTable::MakeIfAbsent(Stripe& stripe, std::uint64_t hash, std::uint32_t count,
                                         AdmissionFilter* filter, FoundRow* row) {
  if (row->header != nullptr) return true;
  if (filter != nullptr && !filter->Admit(IdOfHash(hash), count)) {
    ++stripe.held_back;
    return false;
  }
  row->header = rows_.Header(Make(stripe, hash));
  ++stripe.admitted;
  accessor_->Init(row->data());
  return true;
}

void EmbeddingTable::Assign(const std::int64_t* ids, std::size_t n, const float* rows,
                            const WriteOptions& options) {
  if (!config_.skip_zero_embedding) {
    const bool raw = accessor_->values_are_raw();
    Write(ids, n, options, [&](std::size_t position, std::byte* row) {
      const float* values = rows + position * dim_;
      if (raw) {
        CopyFloats(values, dim_, reinterpret_cast<float*>(row));
      } else {
        accessor_->Assign(values, row);
      }
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

std::size_t EmbeddingTable::Optimize(const std::int64_t* ids, std::size_t n, const float* grads,
                                     const float* learning_rates, std::int64_t global_step,
                                     const WriteOptions& options) {
  RaiseMaxUpdateTime(options.update_time_sec);
  std::atomic<std::size_t> held_back{0};
  LockSliceBySlice<ForWriting>(
      ids, n, options.parallel,
      [&](const auto& slice, std::size_t first, std::size_t end, std::size_t first_position) {
        PendingSteps steps(*accessor_, learning_rates, global_step, options.update_time_sec);
        std::size_t held_back_here = 0;
        steps.TakeStepsOf([&] {
          WalkIds<ForWriting>(
              slice, first, end,
              [&](Stripe& stripe, std::uint64_t hash, std::size_t in_slice, FoundRow row) {
                const std::size_t position = first_position + in_slice;
                const std::uint32_t count = CountAt(options, position);
                if (!MakeIfAbsent(stripe, hash, count, options.filter, &row)) {
                  ++held_back_here;
                  return;
                }
                steps.Add(row.header, grads + GradientOf(options, position) * dim_);
              });
        });
        held_back.fetch_add(held_back_here, std::memory_order_relaxed);
      });
  return held_back.load();
}

std::size_t EmbeddingTable::OptimizeSummed(const std::int64_t* ids, std::size_t n,
                                           const float* grads, const float* learning_rates,
                                           std::int64_t global_step, const WriteOptions& options) {
  RaiseMaxUpdateTime(options.update_time_sec);
  if (n == 0) return 0;
  std::atomic<std::size_t> held_back{0};
  // `stripes` are those of the ids that `sums` has.
  const auto step = [&](const RowSummer& sums, StripeSet stripes) {
    const LockedStripes<ForWriting> lock(stripes_, stripes);
    PendingSteps steps(*accessor_, learning_rates, global_step, options.update_time_sec);
    std::size_t held_back_here = 0;
    steps.TakeStepsOf([&] {
      WalkIds<ForWriting>(Summed{sums}, 0, sums.size(),
                          [&](Stripe& stripe, std::uint64_t hash, std::size_t i, FoundRow row) {
                            if (!MakeIfAbsent(stripe, hash, sums.count(i), options.filter, &row)) {
                              ++held_back_here;
                              return;
                            }
                            steps.Add(row.header, sums.row(i));
                          });
    });
    held_back.fetch_add(held_back_here, std::memory_order_relaxed);
  };
  if (n <= kFewIds) {
    RowSummer& sums = SummerOfThisThread();
    sums.Reset(n, dim_);
    StripeSet stripes;
    for (std::size_t i = 0; i < n; ++i) {
      const std::uint64_t hash = HashId(ids[i]);
      sums.Add(hash, grads + GradientOf(options, i) * dim_);
      stripes.Add(StripeOf(hash));
    }
    step(sums, stripes);
    return held_back.load();
  }
  Batch& batch = BatchOfThisThread(0);
  // Equal ids are in the same stripe, so each thread sums what it will need.
  const auto update = [&](std::size_t first_stripe, std::size_t last_stripe) {
    const std::size_t first = batch.start(first_stripe), end = batch.start(last_stripe);
    if (first == end) return;
    const Batch::Entry* const entries = batch.entries();
    RowSummer& sums = SummerOfThisThread();
    sums.Reset(end - first, dim_);
    constexpr std::size_t kAhead = 8;
    for (std::size_t i = first; i < end; ++i) {
      const std::size_t soon = std::min(i + kAhead, end - 1);
      __builtin_prefetch(grads + GradientOf(options, entries[soon].position) * dim_);
      sums.Add(entries[i].hash, grads + GradientOf(options, entries[i].position) * dim_);
    }
    step(sums, StripeSet(first_stripe, last_stripe));
  };
  if (options.parallel == nullptr) {
    batch.Order(ids, n);
    for (std::size_t s = 0; s < kStripes;) {
      const std::size_t last = EndOfGroup(batch, s, 2 * kIdsInFlight);  // Some will be equal.
      update(s, last);
      s = last;
    }
    return held_back.load();
  }
  batch.Reserve(n);
  enum Stage : std::size_t { kCount, kPlace, kUpdate, kStages };
  const auto pieces_of = [&](std::size_t stage) {
    return stage == kUpdate ? kStripes : batch.num_parts();
  };
  RunInStages(*options.parallel, kStages, pieces_of, [&](std::size_t stage, std::size_t piece) {
    if (stage == kCount) batch.Count(piece, ids, n);
    if (stage == kPlace) batch.Place(piece, ids, n);
    if (stage == kUpdate) update(piece, piece + 1);
  });
  return held_back.load();
}

void EmbeddingTable::Reinitialize(const std::int64_t* ids, std::size_t n, std::int64_t now_sec,
                                  std::int32_t* status) {
  const std::uint32_t row_time = ToRowTime(now_sec);
  ForEachId<ForWriting>(
      ids, n, nullptr, [&](Stripe& stripe, std::uint64_t hash, std::size_t position, FoundRow row) {
        status[position] = row.header == nullptr ? 0 : 1;
        if (row.header == nullptr) {
          row.header = rows_.Header(Make(stripe, hash));
          ++stripe.admitted;
        }
        accessor_->Init(row.data());
        row.header->last_update_sec = row_time;
      });
}

void EmbeddingTable::Reserve(std::size_t rows) {
  for (const auto& stripe : stripes_) {
    const std::unique_lock<FairSharedMutex> lock(stripe->mutex);
    if (stripe->index.size() != 0) continue;
    stripe->index.Reserve(rows / kStripes, *hashes_of_rows_);
  }
}

TableStats EmbeddingTable::Stats() const {
  TableStats stats;
  stats.row_bytes = rows_.MemoryBytes();
  stats.index_bytes = buckets_.MemoryBytes();
  for (const auto& stripe : stripes_) {
    const std::shared_lock<FairSharedMutex> lock(stripe->mutex);
    stats.rows += stripe->index.size();
    stats.index_bytes += sizeof(Stripe) + stripe->index.MemoryBytes();
    stats.admitted += stripe->admitted;
    stats.expired += stripe->expired;
    stats.held_back += stripe->held_back;
  }
  return stats;
}

std::string EmbeddingTable::DebugString() const {
  const TableStats stats = Stats();
  const std::size_t rows = stats.rows;
  const std::uint64_t places = num_places();
  const double load = places == 0 ? 0.0 : static_cast<double>(rows) / static_cast<double>(places);
  return "{\"accessor\": \"" + accessor_->DebugString() + "\", \"size\": " + std::to_string(rows) +
         ", \"memory\": " + std::to_string(stats.memory_bytes()) +
         ", \"memory_if_not_compressed\": " +
         std::to_string(rows * (dim_ * sizeof(float) + sizeof(RowHeader))) +
         ", \"load_factor\": " + std::to_string(load) + "}";
}

}  // namespace monolith::core
