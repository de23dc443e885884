// A lock for structures that many threads change in different places, and one thread now and then
// changes as a whole.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <mutex>
#include <utility>

namespace monolith::core {

// Who may run with whom:
//   - two passes that share no stripe run at the same time; passes that share one take turns;
//   - an exclusive section runs alone.
// Entering costs one uncontended mutex and the read of a flag that hardly ever changes, so threads
// on different stripes do not meet in any cache line.
class StripedGate {
 public:
  static constexpr std::size_t kStripes = 256;

  // Holds one or two stripes until it goes out of scope.
  class [[nodiscard]] Pass {
   private:
    friend class StripedGate;
    std::unique_lock<std::mutex> first_;
    std::unique_lock<std::mutex> second_;
  };

  // Waits for both stripes, which may be the same. The caller holds no other pass.
  Pass Enter(std::size_t stripe, std::size_t other_stripe) {
    if (other_stripe < stripe) std::swap(stripe, other_stripe);  // One order, so no deadlock.
    for (;;) {
      Pass pass;
      pass.first_ = std::unique_lock<std::mutex>(stripes_[stripe].mutex);
      if (other_stripe != stripe) {
        pass.second_ = std::unique_lock<std::mutex>(stripes_[other_stripe].mutex);
      }
      if (!closed_.load(std::memory_order_acquire)) return pass;
      pass = Pass();
      const std::lock_guard<std::mutex> wait_for_reopening(exclusive_);
    }
  }

  // Runs `fn` alone. The caller holds no pass.
  //
  // The gate is closed first and then every stripe is locked once, one at a time: whoever was
  // inside has then left, and whoever comes later finds it closed.
  template <typename Fn>
  void Exclusive(Fn&& fn) {
    const std::lock_guard<std::mutex> one_at_a_time(exclusive_);
    const Closed closed(&closed_);
    for (Stripe& stripe : stripes_) {
      const std::lock_guard<std::mutex> drain(stripe.mutex);
    }
    std::forward<Fn>(fn)();
  }

 private:
  struct alignas(64) Stripe {
    std::mutex mutex;
  };

  class Closed {
   public:
    explicit Closed(std::atomic<bool>* flag) : flag_(flag) { flag_->store(true); }
    ~Closed() { flag_->store(false, std::memory_order_release); }
    Closed(const Closed&) = delete;
    Closed& operator=(const Closed&) = delete;

   private:
    std::atomic<bool>* flag_;
  };

  std::array<Stripe, kStripes> stripes_;
  std::mutex exclusive_;
  std::atomic<bool> closed_{false};
};

}  // namespace monolith::core
