// A lock for readers and writers under which neither waits for ever.
#pragma once

#include <atomic>
#include <mutex>
#include <shared_mutex>

namespace monolith::core {

// Meets the SharedMutex requirements, so std::shared_lock and std::unique_lock work with it. Who
// may run with whom: readers with readers, a writer alone. A thread holds it once at most; a second
// shared lock of the same thread could wait for a writer that waits for the first.
//
// std::shared_mutex lets a reader in whenever no writer is inside, so readers that overlap keep a
// writer out for as long as they like: for seconds, with eight threads of small lookups. Here a
// writer that waits stops those that come later, and is let in when those before it have left.
class FairSharedMutex {
 public:
  void lock() {
    // The usual case: nobody is inside, and nobody waits.
    if (!writer_waits_.load(std::memory_order_relaxed) && mutex_.try_lock()) return;
    const std::lock_guard<std::mutex> first_in_line(line_);
    writer_waits_.store(true, std::memory_order_relaxed);
    mutex_.lock();
    writer_waits_.store(false, std::memory_order_relaxed);
  }
  bool try_lock() { return mutex_.try_lock(); }
  void unlock() { mutex_.unlock(); }

  void lock_shared() {
    // The usual case costs one look at a flag. Whoever misses a flag just set overtakes one writer.
    if (writer_waits_.load(std::memory_order_relaxed)) {
      const std::lock_guard<std::mutex> behind_the_writer(line_);
    }
    mutex_.lock_shared();
  }
  bool try_lock_shared() {
    return !writer_waits_.load(std::memory_order_relaxed) && mutex_.try_lock_shared();
  }
  void unlock_shared() { mutex_.unlock_shared(); }

 private:
  std::shared_mutex mutex_;
  std::atomic<bool> writer_waits_{false};
  std::mutex line_;  // Held by the writer that waits for mutex_.
};

}  // namespace monolith::core
