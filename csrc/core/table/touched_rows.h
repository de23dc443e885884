// Which rows of a table have changed since a save last wrote them.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <shared_mutex>
#include <vector>

#include "core/table/touched_key_set.h"

namespace monolith::core {

// A touched-key set for saves that may fail. Ids that a save has gathered stay pending until it
// says that they are safe on disk, so a failed save loses none: the next one gathers them again.
// Whoever changes a row inserts its id *afterwards*: an id that comes too late for a save is in the
// next one, while an id that comes too early would be saved before the change, and then forgotten.
//
// Thread-safe: every method may be called from any thread. Inserts do not wait for each other.
class TouchedRows {
 public:
  // Throws std::invalid_argument if a touched-key set cannot have this `capacity`.
  explicit TouchedRows(std::size_t capacity);

  // If there is no memory for the ids, they are lost, which counts as too many.
  void Insert(const std::int64_t* ids, std::size_t n) noexcept;

  // What `Gather` found.
  struct Gathered {
    std::size_t num_ids = 0;
    bool complete = true;  // False: there were more than `capacity` ids, which are lost.
  };

  // Adds all ids inserted so far to the pending ones.
  Gathered Gather();
  // The pending ids, rising.
  [[nodiscard]] std::vector<std::int64_t> Pending() const;
  // Forgets the pending ids, which are on disk now; ids inserted after `Gather` stay.
  void Forget();

 private:
  const std::size_t capacity_;
  // Shared by inserts, exclusive for gathering: dropping ids and noting it down are one step.
  mutable std::shared_mutex mutex_;
  TouchedKeySet touched_;
  std::atomic<bool> dropped_{false};
  std::vector<std::int64_t> pending_;
  bool pending_complete_ = true;
};

}  // namespace monolith::core
