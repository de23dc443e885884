#include "core/table/touched_key_set.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

namespace monolith::core {
namespace {

constexpr int kThreads = 10;
#ifdef MONOLITH_SANITIZED
constexpr std::size_t kCapacity = 2097152 / 64;  // The sanitizers are slow; the races are the same.
#else
constexpr std::size_t kCapacity = 2097152;
#endif
constexpr std::size_t kConcurrencyLevel = 1024;

std::vector<std::int64_t> Sorted(std::vector<std::int64_t> keys) {
  std::sort(keys.begin(), keys.end());
  return keys;
}

std::vector<std::int64_t> Range(std::int64_t begin, std::int64_t end) {
  std::vector<std::int64_t> keys(end - begin);
  std::iota(keys.begin(), keys.end(), begin);
  return keys;
}

// Runs `fn(thread)` on kThreads threads and waits for them.
template <typename Fn>
void OnThreads(Fn fn) {
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) threads.emplace_back(fn, t);
  for (auto& thread : threads) thread.join();
}

TEST(TouchedKeySetTest, HoldsWhatFits) {
  TouchedKeySet set(1000, 1);
  const auto keys = Range(0, 1000);
  EXPECT_EQ(set.Insert(keys.data(), keys.size()), 0u);
  EXPECT_EQ(set.size(), 1000u);
  EXPECT_EQ(Sorted(set.Steal()), keys);
}

TEST(TouchedKeySetTest, OverflowDropsAllAndSaysHowMany) {
  TouchedKeySet set(1000, 1);
  const auto keys = Range(0, 1005);
  // 1001 keys fit; the next one finds more than the capacity and clears.
  EXPECT_EQ(set.Insert(keys.data(), keys.size()), 1001u);
  EXPECT_EQ(Sorted(set.Steal()), Range(1001, 1005));
}

TEST(TouchedKeySetTest, EveryInsertIntoAnOverfullSetClearsIt) {
  TouchedKeySet set(2, 4);
  for (const std::int64_t key : {5, 6, 7}) EXPECT_EQ(set.Insert(key), 0u);
  // Key 7 is a duplicate, but the set holds more than its capacity before it is looked for.
  EXPECT_EQ(set.Insert(7), 3u);
  EXPECT_EQ(Sorted(set.Steal()), (std::vector<std::int64_t>{7}));
}

TEST(TouchedKeySetTest, DuplicatesChangeNothing) {
  TouchedKeySet set(10, 2);
  for (int round = 0; round < 100; ++round) {
    for (std::int64_t key = 0; key < 10; ++key) EXPECT_EQ(set.Insert(key), 0u);
  }
  EXPECT_EQ(set.size(), 10u);
  EXPECT_EQ(Sorted(set.Steal()), Range(0, 10));
}

TEST(TouchedKeySetTest, StealEmptiesTheSet) {
  TouchedKeySet set(100, 8);
  EXPECT_TRUE(set.Steal().empty());
  set.Insert(1);
  EXPECT_EQ(set.Steal().size(), 1u);
  EXPECT_TRUE(set.Steal().empty());
  set.Insert(2);
  EXPECT_EQ(set.Steal(), (std::vector<std::int64_t>{2}));
}

TEST(TouchedKeySetTest, AllKeysAreLegal) {
  TouchedKeySet set(100, 16);
  const std::vector<std::int64_t> keys = {std::numeric_limits<std::int64_t>::min(), -1, 0, 1,
                                          std::numeric_limits<std::int64_t>::max()};
  for (int round = 0; round < 3; ++round) {
    for (const std::int64_t key : keys) EXPECT_EQ(set.Insert(key), 0u);
    EXPECT_EQ(set.size(), keys.size());
    set.Insert(keys.data(), keys.size());
    EXPECT_EQ(set.size(), keys.size());
    EXPECT_EQ(Sorted(set.Steal()), keys);
  }
}

TEST(TouchedKeySetTest, CapacityZeroHoldsTheLastKey) {
  TouchedKeySet set(0, 1);
  EXPECT_EQ(set.Insert(1), 0u);
  EXPECT_EQ(set.Insert(2), 1u);
  EXPECT_EQ(set.Steal(), (std::vector<std::int64_t>{2}));
}

TEST(TouchedKeySetTest, RandomKeysComeBack) {
  TouchedKeySet set(kCapacity, kConcurrencyLevel);
  std::mt19937_64 random(1);
  std::vector<std::int64_t> keys(1000);
  for (auto& key : keys) key = static_cast<std::int64_t>(random());
  for (const std::int64_t key : keys) EXPECT_EQ(set.Insert(key), 0u);
  EXPECT_EQ(Sorted(set.Steal()), Sorted(keys));
}

TEST(TouchedKeySetTest, AgreesWithAPlainSet) {
  std::mt19937_64 random(2);
  for (const std::size_t level : {1, 3, 64}) {
    TouchedKeySet set(50, level);
    std::set<std::int64_t> model;
    for (int step = 0; step < 20'000; ++step) {
      if (random() % 500 == 0) {
        ASSERT_EQ(Sorted(set.Steal()), std::vector<std::int64_t>(model.begin(), model.end()));
        model.clear();
        continue;
      }
      const auto key = static_cast<std::int64_t>(random() % 200) - 100;
      std::size_t dropped = 0;
      if (model.size() > 50) {
        dropped = model.size();
        model.clear();
      }
      model.insert(key);
      ASSERT_EQ(set.Insert(key), dropped);
      ASSERT_EQ(set.size(), model.size());
    }
  }
}

TEST(TouchedKeySetTest, ThreadsTogetherFillItExactly) {
  TouchedKeySet set(kCapacity, kConcurrencyLevel);
  std::atomic<std::size_t> dropped{0};
  OnThreads([&](int t) {
    for (std::size_t key = t; key < kCapacity; key += kThreads) dropped += set.Insert(key);
  });
  EXPECT_EQ(dropped, 0u);
  EXPECT_EQ(set.size(), kCapacity);
  EXPECT_EQ(Sorted(set.Steal()), Range(0, kCapacity));
}

TEST(TouchedKeySetTest, ThreadsClearExactlyTwentyTimes) {
  const std::size_t num_keys = 20 * kCapacity + 10'000;
  ASSERT_EQ(num_keys % kThreads, 0u);
  TouchedKeySet set(kCapacity, kConcurrencyLevel);
  std::atomic<int> clears{0};
  std::atomic<std::size_t> dropped{0};
  OnThreads([&](int t) {
    // In batches, as an op inserts them; each thread has its own tenth of the keys.
    auto keys = Range(num_keys / kThreads * t, num_keys / kThreads * (t + 1));
    for (std::size_t i = 0; i < keys.size(); i += 1000) {
      const std::size_t n = set.Insert(&keys[i], std::min<std::size_t>(1000, keys.size() - i));
      // A thread that has to wait in the middle of its batch may come to clear twice.
      EXPECT_EQ(n % (kCapacity + 1), 0u);
      dropped += n;
      clears += static_cast<int>(n / (kCapacity + 1));
    }
  });
  EXPECT_EQ(clears, 20);
  const auto rest = set.Steal();
  EXPECT_EQ(dropped + rest.size(), num_keys);
  EXPECT_EQ(std::set<std::int64_t>(rest.begin(), rest.end()).size(), rest.size());
}

TEST(TouchedKeySetTest, EveryKeyIsStolenOrDroppedOnceWhileThreadsInsert) {
  const std::size_t num_keys = kCapacity;
  for (const std::size_t capacity : {kCapacity, kCapacity / 64}) {
    TouchedKeySet set(capacity, 16);
    std::atomic<int> running{kThreads};
    std::atomic<std::size_t> dropped{0};
    std::vector<std::int64_t> stolen;
    std::thread thief([&] {
      for (bool more = true; more;) {
        more = running.load() > 0;
        const auto keys = set.Steal();
        stolen.insert(stolen.end(), keys.begin(), keys.end());
        std::this_thread::sleep_for(
            std::chrono::milliseconds(1));  // Or the inserters wait forever.
      }
    });
    OnThreads([&](int t) {
      for (std::size_t key = t; key < num_keys; key += kThreads) dropped += set.Insert(key);
      --running;
    });
    thief.join();
    EXPECT_EQ(stolen.size() + dropped, num_keys);
    stolen = Sorted(std::move(stolen));
    EXPECT_EQ(std::adjacent_find(stolen.begin(), stolen.end()), stolen.end());
    if (dropped == 0) {
      EXPECT_EQ(stolen, Range(0, num_keys));
    }
  }
}

TEST(TouchedKeySetTest, ThreadsOnTheSameKeysCountThemOnce) {
  TouchedKeySet set(10'000, 4);
  OnThreads([&](int) {
    for (std::int64_t key = 0; key < 10'000; ++key) EXPECT_EQ(set.Insert(key), 0u);
  });
  EXPECT_EQ(set.size(), 10'000u);
  EXPECT_EQ(Sorted(set.Steal()), Range(0, 10'000));
}

TEST(TouchedKeySetTest, RefusesSizesOutOfRange) {
  EXPECT_THROW(TouchedKeySet(10, 0), std::invalid_argument);
  EXPECT_THROW(TouchedKeySet(10, (1u << 20) + 1), std::invalid_argument);
  EXPECT_THROW(TouchedKeySet(0xFFFFFFFFu, 1), std::invalid_argument);
}

}  // namespace
}  // namespace monolith::core
