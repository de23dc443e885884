// How a kernel shares its work with TensorFlow's own threads.
//
// There are four ways here and one for files, since no single one is good enough for all.
//   ParallelFor   A loop over elements that are known to cost about the same. The number of cycles
//                 decides how many threads wake up, often none.
//   OnAllThreads  One call into the core, which deals out what it finds as it goes: ids do not
//                 spread evenly over rows. All threads wake up, which large batches are worth.
//   DealOut       A few larger pieces, each taken by whoever is free. Nobody waits for a thread
//   that
//                 has not begun, so that a busy machine costs no more than the work.
//   Crew          Small parts in a row (crew.h). Helpers stay awake from part to part and from op
//   to
//                 op. MonolithMlp and its gradient take 0.33 ms for 128 rows through layers of 128,
//                 64 and 1 units on two threads; with ParallelFor they take 0.42 ms.
//   ForEachShard  Files (sharded_files.h). It has threads of its own, because they may wait for the
//                 disk for minutes, and TensorFlow's threads are there to compute.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>

#include "core/system/on_threads.h"
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

// Calls `fn(i)` for each of [0, n), on this thread and on others that come to help, and returns
// when all are done. `fn` must not throw.
inline void DealOut(tensorflow::OpKernelContext* ctx, std::int64_t n,
                    const std::function<void(std::int64_t)>& fn) {
  // Helpers that come too late find nothing to do, maybe after this call has returned.
  struct Pieces {
    std::atomic<std::int64_t> next{0};
    std::mutex mu;
    std::condition_variable all_done;
    std::int64_t num_done = 0;
  };
  const auto pieces = std::make_shared<Pieces>();
  const auto work = [pieces, n, &fn] {
    for (std::int64_t i = pieces->next++; i < n; i = pieces->next++) {
      fn(i);
      const std::lock_guard<std::mutex> lock(pieces->mu);
      if (++pieces->num_done == n) pieces->all_done.notify_all();
    }
  };
  const auto& workers = *ctx->device()->tensorflow_cpu_worker_threads();
  for (std::int64_t i = 1; i < std::min<std::int64_t>(workers.num_threads, n); ++i) {
    workers.workers->Schedule(work);
  }
  work();
  std::unique_lock<std::mutex> lock(pieces->mu);
  pieces->all_done.wait(lock, [&] { return pieces->num_done == std::max<std::int64_t>(n, 0); });
}

// For calls into the core: runs work on all threads at once. `ctx` outlives it.
[[nodiscard]] inline core::Parallel OnAllThreads(tensorflow::OpKernelContext* ctx) {
  return [ctx](const std::function<void()>& work) {
    constexpr std::int64_t kAlwaysSplit = std::int64_t{1} << 40;
    ParallelFor(ctx, ctx->device()->tensorflow_cpu_worker_threads()->num_threads, kAlwaysSplit,
                [&work](std::int64_t begin, std::int64_t end) {
                  for (; begin < end; ++begin) work();
                });
  };
}

}  // namespace monolith::ops
