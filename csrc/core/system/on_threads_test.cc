#include "core/system/on_threads.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <functional>
#include <stdexcept>
#include <vector>

#include "core/testing/tables.h"

namespace monolith::core {
namespace {

using testing::OnThreads;

const Parallel kOneAfterTheOther = [](const std::function<void()>& work) {
  work();
  work();
};

TEST(RunOnRangesTest, EveryNumberComesOnce) {
  for (const std::size_t n : {0u, 1u, 7u, 99u, 5000u}) {
    std::vector<std::atomic<int>> seen(n);
    RunOnRanges(OnThreads(4), n, 3, 50, [&](std::size_t first, std::size_t end) {
      ASSERT_LT(first, end);
      ASSERT_LE(end, n);
      for (std::size_t i = first; i < end; ++i) ++seen[i];
    });
    for (const auto& times : seen) EXPECT_EQ(times, 1);
  }
}

TEST(RunOnRangesTest, RangesGetShorterTowardsTheEnd) {
  std::vector<std::size_t> lengths;
  RunOnRanges(kOneAfterTheOther, 1000, 5, 50,
              [&](std::size_t first, std::size_t end) { lengths.push_back(end - first); });
  EXPECT_EQ(lengths.front(), 50u);
  EXPECT_LE(lengths.back(), 5u);
  for (std::size_t i = 1; i < lengths.size(); ++i) EXPECT_LE(lengths[i], lengths[i - 1]);
}

TEST(RunOnRangesTest, AFailureReachesTheCallerAndNothingBeginsAfterIt) {
  int begun = 0;
  const auto fail_second = [&](std::size_t, std::size_t) {
    if (++begun == 2) throw std::runtime_error("second");
  };
  EXPECT_THROW(RunOnRanges(kOneAfterTheOther, 100, 1, 1, fail_second), std::runtime_error);
  EXPECT_EQ(begun, 2);
}

TEST(RunInStagesTest, EveryPieceComesOnceAndAfterAllOfEarlierStages) {
  const std::vector<std::size_t> pieces = {3, 0, 17, 1, 64, 0, 40};
  for (int repetition = 0; repetition < 50; ++repetition) {
    std::vector<std::vector<std::atomic<int>>> done;
    for (const std::size_t n : pieces) done.emplace_back(n);
    const auto pieces_of = [&](std::size_t stage) { return pieces[stage]; };
    RunInStages(OnThreads(4), pieces.size(), pieces_of, [&](std::size_t stage, std::size_t piece) {
      for (std::size_t before = 0; before < stage; ++before) {
        for (const auto& times : done[before]) EXPECT_EQ(times, 1);
      }
      ++done.at(stage).at(piece);
    });
    for (const auto& stage : done) {
      for (const auto& times : stage) EXPECT_EQ(times, 1);
    }
  }
}

// What one stage writes without a lock is there for the next; the thread sanitizer watches, too.
TEST(RunInStagesTest, AStageSeesWhatTheOneBeforeWrote) {
  constexpr std::size_t kPieces = 100;
  std::vector<std::size_t> first(kPieces), second(kPieces);
  RunInStages(
      OnThreads(3), 2, [](std::size_t) { return kPieces; },
      [&](std::size_t stage, std::size_t piece) {
        if (stage == 0) first[piece] = piece + 1;
        if (stage == 1) second[piece] = first[kPieces - 1 - piece];
      });
  for (std::size_t i = 0; i < kPieces; ++i) EXPECT_EQ(second[i], kPieces - i);
}

TEST(RunInStagesTest, NoStagesAreNoWork) {
  RunInStages(
      OnThreads(2), 0, [](std::size_t) { return std::size_t{1}; },
      [](std::size_t, std::size_t) { FAIL() << "There is no piece."; });
}

TEST(RunInStagesTest, AFailureReachesTheCallerAndLaterStagesDoNotBegin) {
  std::atomic<int> later{0};
  const auto work = [&](std::size_t stage, std::size_t piece) {
    if (stage == 0 && piece == 5) throw std::runtime_error("piece 5");
    if (stage > 0) ++later;
  };
  EXPECT_THROW(RunInStages(
                   OnThreads(3), 3, [](std::size_t) { return std::size_t{10}; }, work),
               std::runtime_error);
  EXPECT_EQ(later, 0);
}

}  // namespace
}  // namespace monolith::core
