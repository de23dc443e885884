#include "core/table/touched_rows.h"

#include <algorithm>
#include <new>

namespace monolith::core {
namespace {

// More than any machine has threads for, and little memory.
constexpr std::size_t kConcurrencyLevel = 64;

}  // namespace

TouchedRows::TouchedRows(std::size_t capacity)
    : capacity_(capacity), touched_(capacity, kConcurrencyLevel) {}

void TouchedRows::Insert(const std::int64_t* ids, std::size_t n) noexcept {
  const std::shared_lock<std::shared_mutex> lock(mutex_);
  bool dropped = true;
  try {
    dropped = touched_.Insert(ids, n) > 0;
  } catch (const std::bad_alloc&) {
  }
  if (dropped) dropped_.store(true, std::memory_order_relaxed);
}

TouchedRows::Gathered TouchedRows::Gather() {
  const std::unique_lock<std::shared_mutex> lock(mutex_);
  const std::vector<std::int64_t> touched = touched_.Steal();
  pending_.insert(pending_.end(), touched.begin(), touched.end());
  std::sort(pending_.begin(), pending_.end());
  pending_.erase(std::unique(pending_.begin(), pending_.end()), pending_.end());
  if (dropped_.exchange(false, std::memory_order_relaxed) || pending_.size() > capacity_) {
    pending_complete_ = false;
  }
  // What is not all of them is of no use to anybody.
  if (!pending_complete_) std::vector<std::int64_t>().swap(pending_);
  return {pending_.size(), pending_complete_};
}

std::vector<std::int64_t> TouchedRows::Pending() const {
  const std::shared_lock<std::shared_mutex> lock(mutex_);
  return pending_;
}

void TouchedRows::Forget() {
  const std::unique_lock<std::shared_mutex> lock(mutex_);
  std::vector<std::int64_t>().swap(pending_);
  pending_complete_ = true;
}

}  // namespace monolith::core
