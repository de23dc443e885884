// The collisionless embedding table: every 64-bit id owns a row.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <shared_mutex>
#include <string>
#include <string_view>
#include <vector>

#include "core/filter/admission_filter.h"
#include "core/row/entry_accessor.h"
#include "core/system/on_threads.h"
#include "core/table/batch.h"
#include "core/table/hash_parts.h"
#include "core/table/row_index.h"
#include "core/table/row_store.h"
#include "core/table/table_config.h"

namespace monolith::core {

struct Stripe;

// Serialized rows, one after another.
struct DumpedRows {
  std::string bytes;
  std::vector<std::size_t> ends;  // Row i is bytes [ends[i-1], ends[i]).

  void Clear() {
    bytes.clear();
    ends.clear();
  }
  [[nodiscard]] std::size_t size() const { return ends.size(); }
  [[nodiscard]] std::string_view operator[](std::size_t i) const {
    const std::size_t begin = i == 0 ? 0 : ends[i - 1];
    return std::string_view(bytes).substr(begin, ends[i] - begin);
  }
};

// Which rows a dump leaves out: those that have expired at `now_sec`.
struct Expiry {
  const SlotExpireTimes* times;
  std::int64_t now_sec;
};

// What a table holds, and what has become of ids since it was made.
struct TableStats {
  std::size_t rows = 0;
  std::size_t row_bytes = 0;    // Of memory for rows, with the places of rows that were removed,
  std::size_t index_bytes = 0;  // and for finding them.
  std::uint64_t admitted = 0;  // Rows that writes and Reinitialize have made; not those of Restore.
  std::uint64_t expired = 0;   // Rows that Evict has removed; what a dump leaves out stays.
  std::uint64_t held_back = 0;  // How often a write got no row for an id, because of the filter.

  [[nodiscard]] std::size_t memory_bytes() const { return row_bytes + index_bytes; }
};

// What all writes share.
struct WriteOptions {
  std::int64_t update_time_sec = 0;       // Becomes the rows' last update; 0: not given.
  AdmissionFilter* filter = nullptr;      // Asked before a row is made; null admits all.
  const std::uint32_t* counts = nullptr;  // Occurrences per id for the filter; null: one each.
  // Which of the gradients is that of each id, for ids that share some; null: each has its own.
  const std::uint32_t* gradient_of = nullptr;
  const Parallel* parallel = nullptr;  // Null: all on the caller's thread.
};

// Thread-safe: every method may be called from any thread. Readers do not wait for readers; an
// update of a row is seen whole or not at all; ids of one call are processed in order. A batch is
// not one transaction: another thread may see some of its rows updated and others not yet.
//
// What a stripe's lock guards is said in stripe.h. Walks over the places hold walk_mutex_ shared
// and Clear holds it exclusively, before any stripe's lock.
class EmbeddingTable {
 public:
  static constexpr std::int64_t kAnyTime = std::numeric_limits<std::int64_t>::max();

  // Reserves `initial_capacity` rows, up to 2^24: more would take gigabytes for rows that may never
  // come. Throws std::invalid_argument if the config does not describe a table.
  explicit EmbeddingTable(const EmbeddingHashTableConfig& config);
  ~EmbeddingTable();
  EmbeddingTable(const EmbeddingTable&) = delete;
  EmbeddingTable& operator=(const EmbeddingTable&) = delete;

  [[nodiscard]] const EmbeddingHashTableConfig& config() const { return config_; }
  [[nodiscard]] const EntryAccessor& accessor() const { return *accessor_; }
  [[nodiscard]] const SlotExpireTimes& expire_times() const { return expire_times_; }
  [[nodiscard]] std::size_t dim() const { return dim_; }
  [[nodiscard]] std::size_t size() const;
  [[nodiscard]] bool Contains(std::int64_t id) const;

  // Copies the rows of `n` ids into `rows` [n, dim], zeros for absent ids, which are not created.
  // Returns how many ids were present.
  std::size_t Lookup(const std::int64_t* ids, std::size_t n, float* rows,
                     const Parallel* parallel = nullptr) const;
  // Says for each id whether it has a row, 1 or 0, and copies the rows of those that have one into
  // `rows` [n, dim], unless that is null; what is there for others stays.
  void LookupPresent(const std::int64_t* ids, std::size_t n, float* rows,
                     std::uint8_t* present) const;
  // Serialized EntryDumps without id; empty for absent ids.
  void LookupEntry(const std::int64_t* ids, std::size_t n, std::string* entries) const;

  // Absent ids get a row first, if the filter admits them. `rows` and `grads` are [n, dim]. If
  // there is no memory for a row, some ids are updated and others are not, but none by halves: a
  // row that was there has the new time if and only if it has the new value.
  void Assign(const std::int64_t* ids, std::size_t n, const float* rows,
              const WriteOptions& options);
  void AssignAdd(const std::int64_t* ids, std::size_t n, const float* rows,
                 const WriteOptions& options);
  // One optimizer step per occurrence of an id, with `learning_rates` [num_segments]. Returns how
  // often the filter held an id back.
  std::size_t Optimize(const std::int64_t* ids, std::size_t n, const float* grads,
                       const float* learning_rates, std::int64_t global_step,
                       const WriteOptions& options);
  // One step per distinct id, on the sum of its gradients. A filter sees how often it came.
  std::size_t OptimizeSummed(const std::int64_t* ids, std::size_t n, const float* grads,
                             const float* learning_rates, std::int64_t global_step,
                             const WriteOptions& options);
  // Fresh value and state, at the time `now_sec`. No update of the table: its newest stays what it
  // was, or rows whose times come from data, or from nobody, would age by years. `status` [n]
  // becomes 1 where the id existed, 0 where it was made.
  void Reinitialize(const std::int64_t* ids, std::size_t n, std::int64_t now_sec,
                    std::int32_t* status);

  // Removes ids that are present; returns how many.
  std::size_t Erase(const std::int64_t* ids, std::size_t n);
  // Removes rows that have expired at `max_update_sec` by the config's expire times; appends their
  // ids to `evicted_ids` unless that is null.
  std::size_t Evict(std::int64_t max_update_sec, std::vector<std::int64_t>* evicted_ids = nullptr);
  void Clear();

  // Rows stand at places [0, num_places()). Walking the places visits every row that
  // stays in the table during the walk exactly once, whatever else is going on.
  [[nodiscard]] std::uint64_t num_places() const { return rows_.num_rows(); }
  // Appends serialized rows from `place` on, without those that `expiry` (if not null) leaves out;
  // stops after `max_rows` rows or at `end`. Returns the place to go on from.
  [[nodiscard]] std::uint64_t Dump(std::uint64_t place, std::uint64_t end, std::size_t max_rows,
                                   const Expiry* expiry, DumpedRows* dumped) const;
  // Appends the ids of rows from `place` on; stops after `max_ids` ids or at `end`. Returns the
  // place to go on from.
  [[nodiscard]] std::uint64_t ListIds(std::uint64_t place, std::uint64_t end, std::size_t max_ids,
                                      std::vector<std::int64_t>* ids) const;
  // Appends a record for each of `n` ids, which are all different: its serialized row, or an
  // EntryDump with nothing but the id where there is none, or where `expiry` leaves it out.
  void DumpIds(const std::int64_t* ids, std::size_t n, const Expiry* expiry,
               DumpedRows* dumped) const;
  // Prepares an empty table for about so many rows: on the way there next to nothing moves, and it
  // takes as much memory as it would have by itself.
  void Reserve(std::size_t rows);
  // Makes or overwrites a row per dump, past any filter. Their times raise max_update_sec(), but
  // not beyond `newest_sec`, that of the table they were dumped from: reinitialized rows may be
  // younger. Throws std::invalid_argument if a dump does not fit the table; rows before it are in
  // the table then. With `values_only` the optimizers of the rows start anew, and need not be those
  // of the dumps.
  void Restore(const EntryDumpView* dumps, std::size_t n, std::int64_t newest_sec = kAnyTime,
               bool values_only = false);
  // A table that has rows gets those of a snapshot in two passes over the dumps, so that no second
  // table is needed: Mark them all with a new mark, EraseUnmarked, then Restore them all.
  //
  // A mark that no row has.
  [[nodiscard]] std::uint32_t NewMark();
  // Marks the rows that the dumps are for, where there are some. Throws std::invalid_argument if
  // Restore would; until EraseUnmarked, marks change nothing.
  void Mark(const EntryDumpView* dumps, std::size_t n, std::uint32_t mark,
            bool values_only = false);
  // Removes the rows without that mark; returns how many. max_update_sec() starts anew.
  std::size_t EraseUnmarked(std::uint32_t mark);

  // The greatest update time any update or restore has brought.
  [[nodiscard]] std::int64_t max_update_sec() const {
    return max_update_sec_.load(std::memory_order_relaxed);
  }

  // Takes each stripe's lock for a moment: while others write, the numbers are not of one instant.
  [[nodiscard]] TableStats Stats() const;
  [[nodiscard]] std::size_t MemoryBytes() const { return Stats().memory_bytes(); }
  [[nodiscard]] std::string DebugString() const;  // JSON.

 private:
  class HashesOfRows;
  struct AsGiven;
  struct ByStripe;
  struct Hashed;
  struct Summed;

  // A row with its address, so that nobody computes it twice; header is null where there is none.
  struct FoundRow {
    std::uint32_t number = RowStore::kNoRow;
    RowHeader* header = nullptr;
    [[nodiscard]] std::byte* data() const { return reinterpret_cast<std::byte*>(header + 1); }
  };

  template <typename Lock, typename OnLocked>
  void LockSliceBySlice(const std::int64_t* ids, std::size_t n, const Parallel* parallel,
                        OnLocked&& on_locked) const;
  template <typename Lock, typename OnLocked>
  void ShareSlices(const std::int64_t* ids, std::size_t n, const Parallel& parallel,
                   OnLocked&& on_locked) const;
  template <typename Lock, typename OnRow>
  void ForEachId(const std::int64_t* ids, std::size_t n, const Parallel* parallel,
                 OnRow&& on_row) const;
  template <typename Lock, typename Ids, typename OnRow>
  void WalkIds(const Ids& ids, std::size_t first, std::size_t end, OnRow&& on_row) const;
  template <typename Update>
  void Write(const std::int64_t* ids, std::size_t n, const WriteOptions& options, Update&& update);
  bool MakeIfAbsent(Stripe& stripe, std::uint64_t hash, std::uint32_t count,
                    AdmissionFilter* filter, FoundRow* row);

  [[nodiscard]] std::uint32_t Find(const Stripe& stripe, std::uint64_t hash) const;
  [[nodiscard]] std::uint32_t Make(Stripe& stripe, std::uint64_t hash);
  void Remove(Stripe& stripe, std::uint64_t hash, std::uint32_t row);
  template <typename Goes>
  std::size_t RemoveWhere(Goes&& goes);
  void RaiseMaxUpdateTime(std::int64_t sec);

  const EmbeddingHashTableConfig config_;
  const std::unique_ptr<EntryAccessor> accessor_;
  const std::size_t dim_;
  const std::size_t bytes_read_;     // Of a row, from its header on, by a lookup,
  const std::size_t bytes_written_;  // and by an update.
  const SlotExpireTimes expire_times_;
  RowStore rows_;
  BucketPool buckets_;
  std::unique_ptr<HashesOfRows> hashes_of_rows_;
  std::array<std::unique_ptr<Stripe>, kStripes> stripes_;
  mutable std::shared_mutex walk_mutex_;
  std::atomic<std::int64_t> max_update_sec_{0};
  std::atomic<std::uint32_t> num_marks_{0};
};

}  // namespace monolith::core
