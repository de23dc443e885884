#include "core/table/touched_key_set.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "core/table/hash.h"

namespace monolith::core {
namespace {

// state = generation << 33 | stealing << 32 | size
constexpr std::uint64_t kStealing = std::uint64_t{1} << 32;

std::size_t SizeOf(std::uint64_t state) { return state & 0xFFFFFFFFu; }
std::uint32_t GenerationOf(std::uint64_t state) { return static_cast<std::uint32_t>(state >> 33); }
// The state of the empty set that follows. Generations repeat after 2^31; for a shard to take an
// old one for the current one it would have to stay unused for exactly so many overflows.
std::uint64_t Emptied(std::uint64_t state) { return ((state >> 33) + 1) << 33; }

constexpr std::size_t kFirstCells = 16;
// So many inserts fit into the time that a cell takes to come from memory.
constexpr std::size_t kPrefetchDistance = 8;

unsigned BitsFor(std::size_t concurrency_level) {
  unsigned bits = 0;
  while ((std::size_t{1} << bits) < concurrency_level) ++bits;
  return bits;
}

std::size_t Checked(std::size_t value, const char* name, std::size_t min, std::size_t max) {
  if (value >= min && value <= max) return value;
  throw std::invalid_argument(
      "The " + std::string(name) + " of a touched-key set must be between " + std::to_string(min) +
      " and " + std::to_string(max) + ", got " + std::to_string(value) + ".");
}

}  // namespace

TouchedKeySet::TouchedKeySet(std::size_t capacity, std::size_t concurrency_level)
    : capacity_(Checked(capacity, "capacity", 0, kMaxCapacity)),
      shard_bits_(
          BitsFor(Checked(concurrency_level, "concurrency_level", 1, kMaxConcurrencyLevel))),
      shards_(std::size_t{1} << shard_bits_) {}

std::size_t TouchedKeySet::Insert(const std::int64_t* keys, std::size_t n) {
  std::size_t dropped = 0;
  for (std::size_t i = 0; i < n; ++i) {
    if (n - i > kPrefetchDistance) Prefetch(keys[i + kPrefetchDistance]);
    dropped += Insert(keys[i]);
  }
  return dropped;
}

std::size_t TouchedKeySet::Insert(std::int64_t signed_key) {
  const auto key = static_cast<std::uint64_t>(signed_key);
  std::size_t dropped = 0;
  const std::uint64_t hash = HashId(signed_key);
  Shard& shard = ShardOf(hash);
  std::unique_lock<std::mutex> lock(shard.mutex);
  for (;;) {
    std::uint64_t state = state_.load(std::memory_order_acquire);
    if ((state & kStealing) != 0) {
      // The thief needs the shard, so let go of it while waiting.
      lock.unlock();
      {
        const std::lock_guard<std::mutex> wait(stealing_);
      }
      lock.lock();
      continue;
    }
    if (SizeOf(state) > capacity_) {
      if (state_.compare_exchange_strong(state, Emptied(state))) dropped += SizeOf(state);
      continue;
    }
    if (shard.generation != GenerationOf(state)) shard.Forget(GenerationOf(state));
    if (shard.Contains(key, hash)) return dropped;
    // Whoever changes the state first has announced its key; the shard's mutex keeps a thief from
    // looking before the key is there.
    shard.MakeRoom();
    std::uint64_t now = state;
    do {
      if (state_.compare_exchange_weak(now, now + 1)) {
        shard.Put(key, hash);
        return dropped;
      }
    } while (GenerationOf(now) == GenerationOf(state) && (now & kStealing) == 0 &&
             SizeOf(now) <= capacity_);
  }
}

std::vector<std::int64_t> TouchedKeySet::Steal() {
  const std::lock_guard<std::mutex> one_at_a_time(stealing_);
  const std::uint64_t state = state_.fetch_or(kStealing);
  // Nobody changes the state from here on; it is opened again whatever happens.
  struct Reopen {
    std::atomic<std::uint64_t>* state;
    std::uint64_t next;
    ~Reopen() { state->store(next, std::memory_order_release); }
  } reopen{&state_, state};

  std::vector<std::int64_t> keys;
  keys.reserve(SizeOf(state));
  for (Shard& shard : shards_) {
    const std::lock_guard<std::mutex> lock(shard.mutex);
    if (shard.generation != GenerationOf(state)) continue;
    if (shard.has_zero) keys.push_back(0);
    for (const std::uint64_t key : shard.cells) {
      if (key != 0) keys.push_back(static_cast<std::int64_t>(key));
    }
  }
  reopen.next = Emptied(state);
  return keys;
}

std::size_t TouchedKeySet::size() const { return SizeOf(state_.load(std::memory_order_acquire)); }

TouchedKeySet::Shard& TouchedKeySet::ShardOf(std::uint64_t hash) {
  // The high bits choose the shard, the low ones the cell in it.
  return shards_[shard_bits_ == 0 ? 0 : hash >> (64 - shard_bits_)];
}

void TouchedKeySet::Prefetch(std::int64_t key) {
  const std::uint64_t hash = HashId(key);
  const Shard& shard = ShardOf(hash);
  // An address that is out of date costs a useless prefetch: they never fault.
  const std::size_t cell = hash & shard.hint_mask.load(std::memory_order_relaxed);
  const std::uintptr_t cells = shard.hint.load(std::memory_order_relaxed);
  __builtin_prefetch(reinterpret_cast<const void*>(cells + cell * sizeof(std::uint64_t)));
}

void TouchedKeySet::Shard::Forget(std::uint32_t new_generation) {
  std::fill(cells.begin(), cells.end(), 0);
  used = 0;
  has_zero = false;
  generation = new_generation;
}

std::uint64_t* TouchedKeySet::Shard::Find(std::uint64_t key, std::uint64_t hash) {
  const std::size_t mask = cells.size() - 1;
  std::size_t i = hash & mask;
  while (cells[i] != 0 && cells[i] != key) i = (i + 1) & mask;
  return &cells[i];
}

bool TouchedKeySet::Shard::Contains(std::uint64_t key, std::uint64_t hash) {
  if (key == 0) return has_zero;
  return !cells.empty() && *Find(key, hash) == key;
}

void TouchedKeySet::Shard::MakeRoom() {
  if (4 * (used + 1) <= 3 * cells.size()) return;
  std::vector<std::uint64_t> old(std::max(kFirstCells, 2 * cells.size()));
  old.swap(cells);
  for (const std::uint64_t key : old) {
    if (key != 0) *Find(key, HashId(static_cast<std::int64_t>(key))) = key;
  }
  hint.store(reinterpret_cast<std::uintptr_t>(cells.data()), std::memory_order_relaxed);
  hint_mask.store(cells.size() - 1, std::memory_order_relaxed);
}

void TouchedKeySet::Shard::Put(std::uint64_t key, std::uint64_t hash) {
  if (key == 0) {
    has_zero = true;
    return;
  }
  *Find(key, hash) = key;
  ++used;
}

}  // namespace monolith::core
