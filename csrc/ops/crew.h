// Threads that go through the parts of one op together.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "tensorflow/core/framework/device_base.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace monolith::ops {

// The calling thread, and helpers from TensorFlow's intra-op threads.
//
// To wake a thread takes tens of microseconds, as long as a part of a small op. So helpers are
// called once per op and then stay awake until it ends, and nobody sleeps between two parts. No
// part waits for a helper that is busy elsewhere or late: whoever is free takes the next piece.
class Crew {
 public:
  static constexpr std::size_t kMaxParts = 3;

  // Calls at most `helpers`; fewer if the device has fewer threads besides this one.
  Crew(tensorflow::OpKernelContext* ctx, std::int64_t helpers)
      : shared_(std::make_shared<Shared>()) {
    const auto& workers = *ctx->device()->tensorflow_cpu_worker_threads();
    helpers = std::min<std::int64_t>(helpers, workers.num_threads - 1);
    for (std::int64_t i = 0; i < helpers; ++i) {
      workers.workers->Schedule([shared = shared_] { shared->Help(); });
    }
  }
  ~Crew() { shared_->is_over.store(true, std::memory_order_release); }
  Crew(const Crew&) = delete;
  Crew& operator=(const Crew&) = delete;

  // Calls `fn(piece)` for each of [0, pieces) and returns when all are done. For pieces of at most
  // some ten microseconds; at most kMaxParts times. `fn` must not throw.
  void ForEach(std::int64_t pieces, const std::function<void(std::int64_t)>& fn) {
    Part& part = shared_->parts[num_parts_];
    part.pieces = pieces;
    part.fn = &fn;
    shared_->opened.store(++num_parts_, std::memory_order_release);
    part.Work();
    SpinUntil([&] { return part.done.load(std::memory_order_acquire) == pieces; });
  }

 private:
  struct Part {
    // `fn` is only used between taking a piece and counting it as done, so it still exists.
    void Work() {
      for (std::int64_t piece = next++; piece < pieces; piece = next++) {
        (*fn)(piece);
        done.fetch_add(1, std::memory_order_release);
      }
    }

    std::int64_t pieces = 0;
    const std::function<void(std::int64_t)>* fn = nullptr;
    std::atomic<std::int64_t> next{0};
    std::atomic<std::int64_t> done{0};
  };

  // Helpers may look at it after the op has ended.
  struct Shared {
    void Help() {
      for (std::size_t i = 0; i < kMaxParts; ++i) {
        SpinUntil([&] { return is_open(i) || is_over.load(std::memory_order_acquire); });
        if (!is_open(i)) return;
        parts[i].Work();
      }
    }
    [[nodiscard]] bool is_open(std::size_t part) const {
      return opened.load(std::memory_order_acquire) > part;
    }

    std::array<Part, kMaxParts> parts;
    std::atomic<std::size_t> opened{0};
    std::atomic<bool> is_over{false};
  };

  // Gives the core away when it takes long: then whoever is waited for may need it.
  template <typename Condition>
  static void SpinUntil(const Condition& condition) {
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

  const std::shared_ptr<Shared> shared_;
  std::size_t num_parts_ = 0;
};

}  // namespace monolith::ops
