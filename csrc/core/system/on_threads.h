// Work of one call, spread over threads that the caller brings.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace monolith::core {

// Runs `work` on several threads at once and returns when all calls have. `work` does not throw.
using Parallel = std::function<void(const std::function<void()>& work)>;

// Waits awake. Gives the core away when it takes long: then whoever is waited for may need it.
template <typename Condition>
void SpinUntil(const Condition& condition) {
  constexpr int kSpins = 1000;
  for (int i = 0; !condition(); ++i) {
    if (i >= kSpins) {
      std::this_thread::yield();
      continue;
    }
#if defined(__SSE2__)
    _mm_pause();
#endif
  }
}

// What pieces of work on several threads threw, kept for the caller. Nothing begins after a
// failure.
class Failures {
 public:
  template <typename Work>
  void Try(Work&& work) {
    if (failed_.load(std::memory_order_acquire)) return;
    try {
      work();
    } catch (...) {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (!first_) first_ = std::current_exception();
      failed_.store(true, std::memory_order_release);
    }
  }
  // When all threads have ended.
  void Rethrow() const {
    if (first_) std::rethrow_exception(first_);
  }

 private:
  std::atomic<bool> failed_{false};
  std::mutex mutex_;
  std::exception_ptr first_;
};

// Calls `work(first, end)` on ranges that cover [0, n). Threads take the next one as they finish
// one. The ranges get shorter towards the end, so that nobody waits long for the last. What `work`
// throws reaches the caller after all have ended.
template <typename Work>
void RunOnRanges(const Parallel& parallel, std::size_t n, std::size_t shortest, std::size_t longest,
                 Work&& work) {
  constexpr std::size_t kPartOfRest = 8;
  std::atomic<std::size_t> next{0};
  Failures failures;
  parallel([&] {
    std::size_t first = next.load();
    while (first < n) {
      const std::size_t wanted = std::clamp((n - first) / kPartOfRest, shortest, longest);
      const std::size_t end = first + std::min(wanted, n - first);
      if (!next.compare_exchange_weak(first, end)) continue;
      failures.Try([&] { work(first, end); });
      first = next.load();
    }
  });
  failures.Rethrow();
}

// Calls `work(stage, piece)` for `pieces_of(stage)` pieces of every stage. No piece begins before
// all of the earlier stages are done; threads wait for that awake, since waking one takes as long
// as some pieces. They take the next piece as they finish one: the work for a hot id is not split
// evenly. What `work` throws reaches the caller after all have ended.
template <typename PiecesOf, typename Work>
void RunInStages(const Parallel& parallel, std::size_t stages, const PiecesOf& pieces_of,
                 Work&& work) {
  constexpr std::size_t kCacheLine = 64;
  alignas(kCacheLine) std::atomic<std::size_t> next{0};  // Pieces count through all stages.
  alignas(kCacheLine) std::atomic<std::size_t> done{0};
  Failures failures;
  parallel([&] {
    std::size_t stage = 0, begin = 0;
    for (;;) {
      const std::size_t piece = next.fetch_add(1, std::memory_order_relaxed);
      while (stage < stages && piece - begin >= pieces_of(stage)) begin += pieces_of(stage++);
      if (stage == stages) return;
      SpinUntil([&] { return done.load(std::memory_order_acquire) >= begin; });
      failures.Try([&] { work(stage, piece - begin); });
      done.fetch_add(1, std::memory_order_release);
    }
  });
  failures.Rethrow();
}

}  // namespace monolith::core
