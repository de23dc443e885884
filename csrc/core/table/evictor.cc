#include "core/table/evictor.h"

#include <utility>

namespace monolith::core {

Evictor::Evictor(std::chrono::milliseconds poll, std::chrono::milliseconds period,
                 std::function<void()> evict, std::function<Clock::time_point()> now)
    : evict_(std::move(evict)), now_(std::move(now)) {
  thread_ = std::thread([this, poll, period] { Run(poll, period); });
}

Evictor::~Evictor() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void Evictor::Run(std::chrono::milliseconds poll, std::chrono::milliseconds period) {
  std::unique_lock<std::mutex> lock(mutex_);
  wake_.wait_for(lock, poll, [this] { return stopping_; });
  Clock::time_point last = now_();
  while (!stopping_) {
    if (now_() - last >= period) {
      lock.unlock();
      evict_();
      lock.lock();
      last = now_();
    }
    wake_.wait_for(lock, poll, [this] { return stopping_; });
  }
}

}  // namespace monolith::core
