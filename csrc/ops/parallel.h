// Work split over TensorFlow's own intra-op threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>

#include "tensorflow/core/framework/device_base.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/util/work_sharder.h"

namespace monolith::ops {

// Calls `fn(begin, end)` on pieces that together cover [0, n), from one or several threads, and
// returns when all are done. Small work (n * cycles_per_unit) stays on the calling thread.
// `fn` must not throw.
inline void ParallelFor(tensorflow::OpKernelContext* ctx, std::int64_t n,
                        std::int64_t cycles_per_unit,
                        const std::function<void(std::int64_t, std::int64_t)>& fn) {
  if (n <= 0) return;
  const auto& workers = *ctx->device()->tensorflow_cpu_worker_threads();
  tensorflow::Shard(workers.num_threads, workers.workers, n, cycles_per_unit, fn);
}

// Calls `fn(piece)` for each of [0, pieces), from this thread and others, and returns when all are
// done. Unlike with `ParallelFor`, no piece waits for a thread that is busy or late: whoever is
// free takes the next one, and this thread does all of them if nobody comes. For pieces of at least
// some ten microseconds. `fn` must not throw.
inline void ForEachPiece(tensorflow::OpKernelContext* ctx, std::int64_t pieces,
                         const std::function<void(std::int64_t)>& fn) {
  struct Shared {
    explicit Shared(std::int64_t n, const std::function<void(std::int64_t)>* f)
        : pieces(n), fn(f) {}

    // `fn` is only used between taking a piece and counting it as done, so it still exists.
    void Work() {
      for (std::int64_t piece = next++; piece < pieces; piece = next++) {
        (*fn)(piece);
        if (++done == pieces) {
          const std::lock_guard<std::mutex> lock(mutex);
          all_done.notify_one();
        }
      }
    }

    const std::int64_t pieces;
    const std::function<void(std::int64_t)>* const fn;
    std::atomic<std::int64_t> next{0};
    std::atomic<std::int64_t> done{0};
    std::mutex mutex;
    std::condition_variable all_done;
  };
  if (pieces <= 0) return;
  // Helpers that come late find no piece left, maybe after this call has returned.
  const auto shared = std::make_shared<Shared>(pieces, &fn);
  const auto& workers = *ctx->device()->tensorflow_cpu_worker_threads();
  const std::int64_t helpers = std::min<std::int64_t>(workers.num_threads, pieces) - 1;
  for (std::int64_t i = 0; i < helpers; ++i)
    workers.workers->Schedule([shared] { shared->Work(); });
  shared->Work();
  std::unique_lock<std::mutex> lock(shared->mutex);
  shared->all_done.wait(lock, [&] { return shared->done == pieces; });
}

}  // namespace monolith::ops
