#include "core/table/evictor.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <future>
#include <memory>
#include <mutex>
#include <thread>

#include "core/table/embedding_table.h"
#include "core/testing/tables.h"

namespace monolith::core {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;

// A clock that stands still until a test moves it, and tells how often the evictor has looked.
class ControlledClock {
 public:
  Evictor::Clock::time_point Now() {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++looks_;
    looked_.notify_all();
    return now_;
  }

  void Advance(milliseconds by) {
    const std::lock_guard<std::mutex> lock(mutex_);
    now_ += by;
  }

  // Waits until the evictor has looked and acted on what it saw at least once from now on: it looks
  // up to twice per round, so five looks are more than a whole round.
  void WaitForARound() {
    std::unique_lock<std::mutex> lock(mutex_);
    const std::int64_t enough = looks_ + 5;
    looked_.wait(lock, [&] { return looks_ >= enough; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable looked_;
  std::int64_t looks_ = 0;
  Evictor::Clock::time_point now_ = Evictor::Clock::time_point(hours(1000));
};

TEST(EvictorTest, CallsOncePerPeriodFromTheFirstWakeUpOn) {
  ControlledClock clock;
  std::atomic<int> calls{0};
  const Evictor evictor(milliseconds(1), hours(240), [&] { ++calls; }, [&] { return clock.Now(); });
  clock.WaitForARound();
  EXPECT_EQ(calls, 0);

  clock.Advance(hours(240) - seconds(1));
  clock.WaitForARound();
  EXPECT_EQ(calls, 0);

  clock.Advance(seconds(1));
  clock.WaitForARound();
  EXPECT_EQ(calls, 1);

  // The period starts anew with the call.
  clock.Advance(hours(239));
  clock.WaitForARound();
  EXPECT_EQ(calls, 1);
  clock.Advance(hours(1));
  clock.WaitForARound();
  EXPECT_EQ(calls, 2);

  // Several periods at once, as after a machine's sleep, are one call.
  clock.Advance(hours(2400));
  clock.WaitForARound();
  EXPECT_EQ(calls, 3);
}

TEST(EvictorTest, StopsAtOnceHoweverLongThePoll) {
  int calls = 0;
  const auto start = std::chrono::steady_clock::now();
  {
    const Evictor evictor(hours(1), milliseconds(0), [&] { ++calls; });
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, minutes(1));
  EXPECT_EQ(calls, 0);
}

TEST(EvictorTest, EndingWaitsForARunningCall) {
  std::promise<void> started;
  std::promise<void> may_finish;
  std::atomic<bool> finished{false};
  std::atomic<int> calls{0};
  auto evictor = std::make_unique<Evictor>(milliseconds(1), milliseconds(0), [&] {
    if (++calls > 1) return;
    started.set_value();
    may_finish.get_future().wait();
    finished = true;
  });
  started.get_future().wait();
  std::thread other([&] { may_finish.set_value(); });
  evictor.reset();
  EXPECT_TRUE(finished);
  other.join();
}

TEST(EvictorTest, EvictsATableThatOthersUse) {
  EmbeddingHashTableConfig config = testing::SgdTable(1);
  config.slot_expire_time_config.default_expire_time = 1;
  EmbeddingTable table(config);
  WriteOptions old;
  old.update_time_sec = 1000;
  testing::AssignAll(table, {1, 2, 3}, 1.0f, old);

  ControlledClock clock;
  const Evictor evictor(
      milliseconds(1), hours(1), [&] { table.Evict(table.max_update_sec()); },
      [&] { return clock.Now(); });
  clock.WaitForARound();
  WriteOptions fresh;
  fresh.update_time_sec = 1000 + 86'400;  // A day later: the others are expired.
  testing::AssignAll(table, {4}, 1.0f, fresh);
  EXPECT_EQ(table.size(), 4u);
  clock.Advance(hours(1));
  clock.WaitForARound();
  EXPECT_EQ(table.size(), 1u);
  EXPECT_TRUE(table.Contains(4));
}

}  // namespace
}  // namespace monolith::core
