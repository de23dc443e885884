#include "core/filter/probabilistic_filter.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstdint>
#include <random>
#include <thread>
#include <vector>

#include "core/filter/dummy_filter.h"

namespace monolith::core {
namespace {

constexpr int kDraws = 10'000;

SlotThresholds Thresholds(std::uint32_t threshold) {
  SlotOccurrenceThresholdConfig config;
  config.default_occurrence_threshold = threshold;
  return SlotThresholds(config);
}

int CountAdmitted(bool equal_probability, std::uint32_t threshold, std::uint32_t count) {
  std::mt19937 generator(20'240'101);
  ProbabilisticFilter filter(Thresholds(threshold), equal_probability,
                             [&generator] { return static_cast<std::uint32_t>(generator()); });
  int admitted = 0;
  for (int id = 0; id < kDraws; ++id) admitted += filter.Admit(id, count);
  return admitted;
}

TEST(ProbabilisticFilterTest, AdmitsCountOutOfThreshold) {
  EXPECT_NEAR(CountAdmitted(false, 7, 1), 1428, 100);
  EXPECT_NEAR(CountAdmitted(false, 7, 2), 2856, 100);
  EXPECT_EQ(CountAdmitted(false, 7, 7), kDraws);
  EXPECT_EQ(CountAdmitted(false, 7, 1000), kDraws);
}

TEST(ProbabilisticFilterTest, EqualProbabilityLeavesOutFivePercentAfterThresholdOccurrences) {
  const double p = 1 - std::pow(0.05, 1.0 / 7);
  EXPECT_NEAR(CountAdmitted(true, 7, 1), kDraws * p, 0.05 * kDraws);
  EXPECT_NEAR(CountAdmitted(true, 7, 2), kDraws * (1 - (1 - p) * (1 - p)), 0.10 * kDraws);
  EXPECT_NEAR(CountAdmitted(true, 7, 7), kDraws * 0.95, 100);
}

TEST(ProbabilisticFilterTest, BoundaryDraws) {
  std::uint32_t draw = 0;
  const auto random = [&draw] { return draw; };
  ProbabilisticFilter unequal(Thresholds(4), false, random);
  // draw * 4 < (2^32 - 1) * 1 up to and including draw = 2^30 - 1.
  draw = (1u << 30) - 1;
  EXPECT_TRUE(unequal.Admit(1, 1));
  draw = 1u << 30;
  EXPECT_FALSE(unequal.Admit(1, 1));
  EXPECT_TRUE(unequal.Admit(1, 2));

  ProbabilisticFilter equal(Thresholds(1), true, random);  // p = 0.95.
  draw = static_cast<std::uint32_t>(0.9499 * 4294967295.0);
  EXPECT_TRUE(equal.Admit(1, 1));
  draw = static_cast<std::uint32_t>(0.9501 * 4294967295.0);
  EXPECT_FALSE(equal.Admit(1, 1));
  EXPECT_TRUE(equal.Admit(1, 2));  // 0.9975.
}

TEST(ProbabilisticFilterTest, ThresholdZeroAdmitsAlways) {
  for (const bool equal : {false, true}) {
    ProbabilisticFilter filter(Thresholds(0), equal, [] { return 0xFFFFFFFFu; });
    EXPECT_TRUE(filter.Admit(1, 1));
  }
}

TEST(ProbabilisticFilterTest, SlotsHaveTheirOwnThreshold) {
  SlotOccurrenceThresholdConfig config;
  config.default_occurrence_threshold = 1'000'000;
  config.slot_occurrence_thresholds = {{3, 0}};
  ProbabilisticFilter filter(SlotThresholds(config), false, [] { return 0x80000000u; });
  EXPECT_TRUE(filter.Admit(std::int64_t{3} << 48, 1));
  EXPECT_FALSE(filter.Admit(std::int64_t{4} << 48, 1));
}

TEST(ProbabilisticFilterTest, DefaultRandomNumbersServeManyThreads) {
  ProbabilisticFilter filter(Thresholds(2), false);
  std::atomic<int> admitted{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < kDraws; ++i) admitted += filter.Admit(i, 1);
    });
  }
  for (auto& thread : threads) thread.join();
  // 80000 fair coins have a standard deviation of 141; this allows ten of them.
  EXPECT_NEAR(admitted, 4 * kDraws, 1414);
}

TEST(DummyFilterTest, AdmitsEverything) {
  DummyFilter filter;
  EXPECT_TRUE(filter.Admit(0, 0));
  EXPECT_TRUE(filter.Admit(-1, 1));
}

}  // namespace
}  // namespace monolith::core
