// Remembers which keys were touched since they were last asked for.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

namespace monolith::core {

// A bounded set of 64-bit keys, all of them legal, that many threads fill and one empties at a
// time. Whoever falls so far behind that the set overflows loses it as a whole and is told how
// much.
//
// Thread-safe: every method may be called from any thread. Each call of Insert with one key and
// each Steal takes effect at one instant, so no key is lost, kept twice or counted wrongly between
// threads. Inserts into different shards run at the same time; an overflow is one atomic step; a
// steal makes inserts wait.
class TouchedKeySet {
 public:
  // Of `capacity`, so that the number of keys fits into 32 bits.
  static constexpr std::size_t kMaxCapacity = 0xFFFFFFFEu;
  static constexpr std::size_t kMaxConcurrencyLevel = 1u << 20;

  // Holds up to `capacity` + 1 keys, in as many shards as the next power of two of
  // `concurrency_level` says; memory for keys is allocated as they come. Throws
  // std::invalid_argument if one of them is out of range.
  TouchedKeySet(std::size_t capacity, std::size_t concurrency_level);

  // If the set holds more than `capacity` keys, first drops them all; then adds `key` unless it is
  // there. Returns how many keys were dropped.
  std::size_t Insert(std::int64_t key);
  // The same for each of `n` keys in turn, and faster; returns the sum.
  std::size_t Insert(const std::int64_t* keys, std::size_t n);

  // Empties the set and returns what was in it, in no particular order.
  [[nodiscard]] std::vector<std::int64_t> Steal();

  [[nodiscard]] std::size_t size() const;
  [[nodiscard]] std::size_t capacity() const { return capacity_; }

 private:
  // An open-addressing set of keys. Guarded by its mutex.
  struct alignas(64) Shard {
    std::mutex mutex;
    std::uint32_t generation = 0;      // The keys count only while this is the set's generation.
    bool has_zero = false;             // Key 0 lies here, since 0 marks an empty cell.
    std::size_t used = 0;              // Occupied cells.
    std::vector<std::uint64_t> cells;  // None, or a power of two.
    // Where the cells lie, for whoever wants to prefetch one without the mutex. May be out of date.
    std::atomic<std::uintptr_t> hint{0};
    std::atomic<std::size_t> hint_mask{0};

    void Forget(std::uint32_t new_generation);
    // The cell of a key other than 0, or the empty cell where it would go.
    [[nodiscard]] std::uint64_t* Find(std::uint64_t key, std::uint64_t hash);
    [[nodiscard]] bool Contains(std::uint64_t key, std::uint64_t hash);
    void MakeRoom();
    void Put(std::uint64_t key, std::uint64_t hash);
  };

  [[nodiscard]] Shard& ShardOf(std::uint64_t hash);
  void Prefetch(std::int64_t key);

  const std::size_t capacity_;
  const unsigned shard_bits_;
  std::vector<Shard> shards_;

  // The whole state that all threads share, in one word: number of keys, whether a steal is going
  // on, generation. Raising the generation empties the set: a shard of an older one is forgotten
  // when it is next used.
  std::atomic<std::uint64_t> state_{0};
  std::mutex stealing_;  // Held while the state says so.
};

}  // namespace monolith::core
