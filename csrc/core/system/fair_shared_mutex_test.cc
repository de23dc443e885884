#include "core/system/fair_shared_mutex.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <future>
#include <mutex>
#include <shared_mutex>
#include <thread>
#include <vector>

#include "core/testing/tables.h"

namespace monolith::core {
namespace {

using testing::RunThreads;

TEST(FairSharedMutexTest, ReadersRunTogetherAndAWriterAlone) {
  FairSharedMutex mutex;
  {
    const std::shared_lock<FairSharedMutex> first(mutex);
    std::async(std::launch::async, [&] {
      EXPECT_TRUE(mutex.try_lock_shared());
      mutex.unlock_shared();
      EXPECT_FALSE(mutex.try_lock());
    }).get();
  }
  const std::unique_lock<FairSharedMutex> writer(mutex);
  std::async(std::launch::async, [&] {
    EXPECT_FALSE(mutex.try_lock_shared());
    EXPECT_FALSE(mutex.try_lock());
  }).get();
}

TEST(FairSharedMutexTest, AWriterThatWaitsIsNotOvertaken) {
  FairSharedMutex mutex;
  std::vector<int> order;
  mutex.lock_shared();
  std::thread writer([&] {
    const std::unique_lock<FairSharedMutex> lock(mutex);
    order.push_back(1);
  });
  // The writer stands in line as soon as nobody else gets in.
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  bool in_line = false;
  while (!in_line && std::chrono::steady_clock::now() < deadline) {
    in_line = !mutex.try_lock_shared();
    if (!in_line) mutex.unlock_shared();
    std::this_thread::yield();
  }
  EXPECT_TRUE(in_line);
  std::thread reader([&] {
    const std::shared_lock<FairSharedMutex> lock(mutex);
    order.push_back(2);
  });
  mutex.unlock_shared();
  writer.join();
  reader.join();
  EXPECT_EQ(order, (std::vector<int>{1, 2}));
}

TEST(FairSharedMutexTest, NoUpdateIsLostAndNoneIsSeenHalf) {
  FairSharedMutex mutex;
  std::int64_t first = 0;
  std::int64_t second = 0;
  std::atomic<int> writers_left{4};
  constexpr int kWrites = 5000;
  RunThreads(8, [&](int thread) {
    if (thread < 4) {
      for (int i = 0; i < kWrites; ++i) {
        const std::unique_lock<FairSharedMutex> lock(mutex);
        ++first;
        ++second;
      }
      --writers_left;
    } else {
      while (writers_left > 0) {
        const std::shared_lock<FairSharedMutex> lock(mutex);
        ASSERT_EQ(first, second);
      }
    }
  });
  EXPECT_EQ(first, 4 * kWrites);
}

}  // namespace
}  // namespace monolith::core
