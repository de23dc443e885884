// A thread that removes expired rows now and then.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

namespace monolith::core {

// Wakes up every `poll`, and calls `evict` whenever `period` has passed since the first wake-up or
// the last call. Destroying it waits for a running call and ends the thread.
class Evictor {
 public:
  using Clock = std::chrono::steady_clock;

  Evictor(std::chrono::milliseconds poll, std::chrono::milliseconds period,
          std::function<void()> evict, std::function<Clock::time_point()> now = &Clock::now);
  ~Evictor();
  Evictor(const Evictor&) = delete;
  Evictor& operator=(const Evictor&) = delete;

 private:
  void Run(std::chrono::milliseconds poll, std::chrono::milliseconds period);

  const std::function<void()> evict_;
  const std::function<Clock::time_point()> now_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace monolith::core
