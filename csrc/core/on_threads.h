// Work of one call, spread over threads that the caller brings.
#pragma once

#include <atomic>
#include <cstddef>
#include <exception>
#include <functional>
#include <mutex>

namespace monolith::core {

// Runs `work` on several threads at once and returns when all calls have. `work` does not throw.
using Parallel = std::function<void(const std::function<void()>& work)>;

// Calls `work(i)` for every i below `n`. Threads take the next one as they finish one: the work for
// a hot id is not split evenly. What `work` throws reaches the caller after all have ended.
template <typename Work>
void RunOnThreads(const Parallel& parallel, std::size_t n, Work&& work) {
  std::atomic<std::size_t> next{0};
  std::exception_ptr failure;
  std::mutex failure_mutex;
  parallel([&] {
    for (std::size_t i; (i = next.fetch_add(1)) < n;) {
      try {
        work(i);
      } catch (...) {
        const std::lock_guard<std::mutex> lock(failure_mutex);
        failure = std::current_exception();
      }
    }
  });
  if (failure) std::rethrow_exception(failure);
}

}  // namespace monolith::core
