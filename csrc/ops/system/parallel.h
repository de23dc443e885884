// Work split over TensorFlow's own intra-op threads.
#pragma once

#include <cstdint>
#include <functional>

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

}  // namespace monolith::ops
