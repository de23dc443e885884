#include "ops/system/crew.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>
#include <vector>

#include "core/system/on_threads.h"
#include "tensorflow/core/framework/device_base.h"

namespace monolith::ops {
namespace {

using Clock = std::chrono::steady_clock;

// How long a helper without work stays awake: from one op of a training step to the next.
constexpr auto kLinger = std::chrono::microseconds(200);

}  // namespace

// What a crew does. Helpers may look at it after the op has ended.
class Crew::Job {
 public:
  void Open(std::size_t part, std::int64_t pieces, const std::function<void(std::int64_t)>* fn) {
    parts_[part].pieces = pieces;
    parts_[part].fn = fn;
    opened_.store(part + 1, std::memory_order_release);
  }

  void Work(std::size_t part) { parts_[part].Work(); }

  void WaitFor(std::size_t part) const {
    const Part& p = parts_[part];
    core::SpinUntil([&] { return p.done.load(std::memory_order_acquire) == p.pieces; });
  }

  void End() { is_over_.store(true, std::memory_order_release); }

  // Works on all parts that come.
  void Help() {
    for (std::size_t i = 0; i < kMaxParts; ++i) {
      core::SpinUntil([&] { return is_open(i) || is_over_.load(std::memory_order_acquire); });
      if (!is_open(i)) return;
      Work(i);
    }
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

  [[nodiscard]] bool is_open(std::size_t part) const {
    return opened_.load(std::memory_order_acquire) > part;
  }

  std::array<Part, kMaxParts> parts_;
  std::atomic<std::size_t> opened_{0};
  std::atomic<bool> is_over_{false};
};

namespace {

// Where helpers meet jobs. A helper that was called takes whatever job there is when it comes: the
// one that it was called for may be over by then.
template <typename Job>
class Lounge {
 public:
  // Offers the job to so many helpers. Returns how many must be called for that, beyond those who
  // wait or are on their way.
  std::int64_t Offer(const std::shared_ptr<Job>& job, std::int64_t helpers) {
    const std::lock_guard<std::mutex> lock(mutex_);
    offers_.insert(offers_.end(), helpers, job);
    CountOffers();
    const auto missing = static_cast<std::int64_t>(offers_.size()) - waiting_ - coming_;
    const std::int64_t called = std::clamp<std::int64_t>(missing, 0, helpers);
    coming_ += called;
    return called;
  }

  // Of a job that is over.
  void Withdraw(const std::shared_ptr<Job>& job) {
    const std::lock_guard<std::mutex> lock(mutex_);
    offers_.erase(std::remove(offers_.begin(), offers_.end(), job), offers_.end());
    CountOffers();
  }

  // Works on jobs until none has come for a while; for a thread that was called.
  void Help() {
    StopComing();
    while (const std::shared_ptr<Job> job = Wait()) job->Help();
  }

  // Of a thread that was called: it is there, or will not come.
  void StopComing() {
    const std::lock_guard<std::mutex> lock(mutex_);
    --coming_;
  }

 private:
  // Returns nullptr if nobody offers anything for a while.
  std::shared_ptr<Job> Wait() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      ++waiting_;
    }
    const auto end = Clock::now() + kLinger;
    core::SpinUntil(
        [&] { return num_offers_.load(std::memory_order_acquire) > 0 || Clock::now() >= end; });
    const std::lock_guard<std::mutex> lock(mutex_);
    --waiting_;
    if (offers_.empty()) return nullptr;
    std::shared_ptr<Job> job = std::move(offers_.back());
    offers_.pop_back();
    CountOffers();
    return job;
  }

  void CountOffers() { num_offers_.store(offers_.size(), std::memory_order_release); }

  std::mutex mutex_;
  std::int64_t waiting_ = 0;
  std::int64_t coming_ = 0;  // Called, and not there yet.
  std::vector<std::shared_ptr<Job>> offers_;
  std::atomic<std::size_t> num_offers_{0};  // To look without the lock.
};

template <typename Job>
Lounge<Job>& TheLounge() {
  static auto* const lounge = new Lounge<Job>;  // Threads may still wait when the process ends.
  return *lounge;
}

}  // namespace

Crew::Crew(tensorflow::OpKernelContext* ctx, std::int64_t helpers) {
  const auto& workers = *ctx->device()->tensorflow_cpu_worker_threads();
  helpers = std::min<std::int64_t>(helpers, workers.num_threads - 1);
  if (helpers <= 0) return;
  job_ = std::make_shared<Job>();
  const std::int64_t called = TheLounge<Job>().Offer(job_, helpers);
  for (std::int64_t i = 0; i < called; ++i) {
    workers.workers->Schedule([caller = std::this_thread::get_id()] {
      // Threads with too much to do let the caller do it, who would wait for itself.
      if (std::this_thread::get_id() == caller) {
        TheLounge<Job>().StopComing();
      } else {
        TheLounge<Job>().Help();
      }
    });
  }
}

Crew::~Crew() {
  if (job_ == nullptr) return;
  job_->End();
  TheLounge<Job>().Withdraw(job_);
}

void Crew::ForEach(std::int64_t pieces, const std::function<void(std::int64_t)>& fn) {
  if (job_ == nullptr) {
    for (std::int64_t piece = 0; piece < pieces; ++piece) fn(piece);
    return;
  }
  const std::size_t part = num_parts_++;
  job_->Open(part, pieces, &fn);
  job_->Work(part);
  job_->WaitFor(part);
}

}  // namespace monolith::ops
