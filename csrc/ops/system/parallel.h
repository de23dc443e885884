// How a kernel shares its work with TensorFlow's own threads.
//
// There are three ways here and one for files, since no single one is good enough for all.
//   ParallelFor   A loop over elements that are known to cost about the same. The number of cycles
//                 decides how many threads wake up, often none.
//   OnAllThreads  One call into the core, which deals out what it finds as it goes: ids do not
//                 spread evenly over rows. All threads wake up, which large batches are worth.
//   Crew          Small parts in a row (crew.h). Helpers stay awake from part to part and from op
//   to
//                 op. MonolithMlp and its gradient take 0.33 ms for 128 rows through layers of 128,
//                 64 and 1 units on two threads; with ParallelFor they take 0.42 ms.
//   ForEachShard  Files (sharded_files.h). It has threads of its own, because they may wait for the
//                 disk for minutes, and TensorFlow's threads are there to compute.
#pragma once

#include <cstdint>
#include <functional>

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
