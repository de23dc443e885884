// The parts of a table that are locked one by one, and their locks.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "core/system/fair_shared_mutex.h"
#include "core/table/hash_parts.h"
#include "core/table/row_index.h"
#include "core/table/row_store.h"

namespace monolith::core {

// The ids of a table whose hashes begin with the same bits. On a cache line of its own, so that
// threads on different stripes do not meet.
//
// The mutex guards the index, the free places, the counts and the bytes of the rows. Who reads rows
// holds it shared, who writes holds it exclusively; who needs several stripes takes them in rising
// order.
struct alignas(64) Stripe {
  explicit Stripe(std::uint8_t number_in_table, BucketPool& pool)
      : index(pool), number(number_in_table) {}

  // Together, and first: with these a call of a few ids is done in two cache lines of a stripe.
  mutable FairSharedMutex mutex;
  RowIndex index;
  const std::uint8_t number;
  std::uint32_t free_row = RowStore::kNoRow;   // Head of a list through the ids of free places.
  std::uint32_t fresh_row = RowStore::kNoRow;  // Next place of the block that is being filled,
  std::uint32_t fresh_left = 0;                // and how many there are.
  std::uint64_t admitted = 0;                  // As in TableStats, of this stripe.
  std::uint64_t expired = 0;
  std::uint64_t held_back = 0;
};

using Stripes = std::array<std::unique_ptr<Stripe>, kStripes>;

// The two ways to hold a stripe.
struct ForReading {
  static void Acquire(FairSharedMutex& mutex) { mutex.lock_shared(); }
  static void Release(FairSharedMutex& mutex) { mutex.unlock_shared(); }
  static constexpr bool kWrites = false;
};
struct ForWriting {
  static void Acquire(FairSharedMutex& mutex) { mutex.lock(); }
  static void Release(FairSharedMutex& mutex) { mutex.unlock(); }
  static constexpr bool kWrites = true;
};

// Some stripes of a table, a bit for each.
class StripeSet {
 public:
  StripeSet() = default;
  // The stripes [first, last).
  StripeSet(std::size_t first, std::size_t last) {
    for (std::size_t s = first; s < last; ++s) Add(s);
  }

  void Add(std::size_t stripe) { bits_ |= std::uint64_t{1} << stripe; }

  // Calls `fn(stripe)` for each, in rising order.
  template <typename Fn>
  void ForEach(Fn&& fn) const {
    for (std::uint64_t bits = bits_; bits != 0; bits &= bits - 1) {
      fn(static_cast<std::size_t>(__builtin_ctzll(bits)));
    }
  }

 private:
  static_assert(kStripes == 64);
  std::uint64_t bits_ = 0;
};

// Holds stripes until it goes out of scope.
template <typename Lock>
class [[nodiscard]] LockedStripes {
 public:
  LockedStripes(const Stripes& stripes, StripeSet set) : stripes_(stripes), set_(set) {
    set_.ForEach([&](std::size_t s) { Lock::Acquire(stripes_[s]->mutex); });
  }
  ~LockedStripes() {
    set_.ForEach([&](std::size_t s) { Lock::Release(stripes_[s]->mutex); });
  }
  LockedStripes(const LockedStripes&) = delete;
  LockedStripes& operator=(const LockedStripes&) = delete;

 private:
  const Stripes& stripes_;
  const StripeSet set_;
};

// Holds all stripes for reading, or none if that would mean to wait for a writer.
class [[nodiscard]] AllStripesOrNone {
 public:
  explicit AllStripesOrNone(const Stripes& stripes) : stripes_(stripes) {
    while (held_ < kStripes && stripes_[held_]->mutex.try_lock_shared()) ++held_;
    if (held_ < kStripes) Release();
  }
  ~AllStripesOrNone() { Release(); }
  AllStripesOrNone(const AllStripesOrNone&) = delete;
  AllStripesOrNone& operator=(const AllStripesOrNone&) = delete;

  explicit operator bool() const { return held_ == kStripes; }

 private:
  void Release() {
    while (held_ > 0) stripes_[--held_]->mutex.unlock_shared();
  }

  const Stripes& stripes_;
  std::size_t held_ = 0;
};

}  // namespace monolith::core
