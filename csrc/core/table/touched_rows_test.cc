#include "core/table/touched_rows.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <set>
#include <thread>
#include <vector>

namespace monolith::core {
namespace {

using Ids = std::vector<std::int64_t>;

void Insert(TouchedRows& rows, const Ids& ids) { rows.Insert(ids.data(), ids.size()); }

TEST(TouchedRowsTest, GathersEachIdOnceInRisingOrder) {
  TouchedRows rows(10);
  Insert(rows, {7, -3, 7});
  Insert(rows, {0, 7});
  const TouchedRows::Gathered gathered = rows.Gather();
  EXPECT_EQ(gathered.num_ids, 3u);
  EXPECT_TRUE(gathered.complete);
  EXPECT_EQ(rows.Pending(), (Ids{-3, 0, 7}));
}

TEST(TouchedRowsTest, PendingIdsStayUntilForgotten) {
  TouchedRows rows(10);
  Insert(rows, {1, 2});
  EXPECT_EQ(rows.Gather().num_ids, 2u);  // This save fails.
  Insert(rows, {2, 3});
  EXPECT_EQ(rows.Gather().num_ids, 3u);
  Insert(rows, {1});  // While the save is written.
  rows.Forget();
  EXPECT_EQ(rows.Gather().num_ids, 1u);
  EXPECT_EQ(rows.Pending(), (Ids{1}));
}

TEST(TouchedRowsTest, OverflowIsReportedUntilForgotten) {
  TouchedRows rows(2);
  Insert(rows, {1, 2, 3, 4});
  EXPECT_FALSE(rows.Gather().complete);
  EXPECT_TRUE(rows.Pending().empty());
  Insert(rows, {5});
  EXPECT_FALSE(rows.Gather().complete);  // The save that followed has failed.
  rows.Forget();
  Insert(rows, {6});
  EXPECT_TRUE(rows.Gather().complete);
  EXPECT_EQ(rows.Pending(), (Ids{6}));
}

TEST(TouchedRowsTest, FailedSavesOverflowTogether) {
  TouchedRows rows(2);
  Insert(rows, {1, 2});
  EXPECT_TRUE(rows.Gather().complete);
  Insert(rows, {3});
  EXPECT_FALSE(rows.Gather().complete);
}

TEST(TouchedRowsTest, NoIdIsLostBetweenThreads) {
  constexpr int kThreads = 4;
  constexpr std::int64_t kIdsPerThread = 20000;
  TouchedRows rows(kThreads * kIdsPerThread);
  std::atomic<int> running{kThreads};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&rows, &running, t] {
      for (std::int64_t i = 0; i < kIdsPerThread; ++i) {
        const std::int64_t id = t * kIdsPerThread + i;
        rows.Insert(&id, 1);
      }
      --running;
    });
  }
  std::set<std::int64_t> saved;
  bool last = false;
  while (!last) {
    last = running == 0;
    ASSERT_TRUE(rows.Gather().complete);
    const Ids pending = rows.Pending();
    for (const std::int64_t id : pending) EXPECT_TRUE(saved.insert(id).second);
    rows.Forget();
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(saved.size(), static_cast<std::size_t>(kThreads * kIdsPerThread));
}

}  // namespace
}  // namespace monolith::core
