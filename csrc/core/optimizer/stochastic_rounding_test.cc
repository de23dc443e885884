#include "core/optimizer/stochastic_rounding.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <thread>
#include <vector>

#include "core/optimizer/optimizer.h"
#include "core/row/half.h"

namespace monolith::core {
namespace {

bool IsHalf(float value) { return FloatFromHalf(HalfFromFloat(value)) == value; }

TEST(MwcRandom, FirstDraws) {
  MwcRandom random;
  EXPECT_EQ(random.Next(), 18000u);
  EXPECT_EQ(random.Next(), 324000000u);
  EXPECT_EQ(random.Next(), 999940943u);
  EXPECT_EQ(random.Next(), 1047453257u);
}

// The pair {0, 1} as it was first written down.
TEST(MwcRandom, EqualsThePairStartedAtZeroAndOne) {
  std::uint32_t x = 0, y = 1;
  MwcRandom random;
  for (int i = 0; i < 100000; ++i) {
    x = 36969 * (x & 65535) + (x >> 16);
    y = 18000 * (y & 65535) + (y >> 16);
    const std::uint32_t draw = random.Next();
    ASSERT_EQ(draw, ((x & 65535) << 16) + y);
    ASSERT_LT(draw, MwcRandom::kRange);
  }
}

TEST(RoundToFloat16, KeepsWhatIsAHalf) {
  MwcRandom random;
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = FloatFromHalf(static_cast<std::uint16_t>(bits));
    if (std::isnan(value)) continue;
    ASSERT_EQ(RoundToFloat16(value, &random), value) << bits;
  }
}

TEST(RoundToFloat16, GivesOneOfTheTwoNeighbours) {
  MwcRandom random;
  std::mt19937 bits(5);
  for (int i = 0; i < 100000; ++i) {
    const float value = half_internal::FromBits(static_cast<std::uint32_t>(bits()));
    if (!(std::abs(value) < 65504.0f)) continue;
    const float rounded = RoundToFloat16(value, &random);
    ASSERT_TRUE(IsHalf(rounded)) << value;
    // No float16 lies strictly between the two: the distance is less than one step of float16.
    const float magnitude = std::max(std::abs(value), std::abs(rounded));
    const float step = std::ldexp(1.0f, std::max(std::ilogb(magnitude), -14) - 10);
    ASSERT_LT(std::abs(value - rounded), step) << value;
  }
}

TEST(RoundToFloat16, UpWithTheRightProbability) {
  // Between 1 and 1 + 2^-10, a quarter of the way up; and the same below zero.
  constexpr int kDraws = 100000;
  for (const float sign : {1.0f, -1.0f}) {
    MwcRandom random;
    int away = 0;
    for (int i = 0; i < kDraws; ++i) {
      const float rounded = RoundToFloat16(sign * (1.0f + 0x1p-12f), &random);
      ASSERT_TRUE(rounded == sign || rounded == sign * (1.0f + 0x1p-10f)) << rounded;
      away += rounded != sign ? 1 : 0;
    }
    EXPECT_NEAR(away, kDraws / 4, 600);  // Four standard deviations: sqrt(n p (1 - p)) is 137.
  }
}

TEST(RoundToFloat16, TheDrawDecides) {
  // Draws are divided by 18000 * 2^16. The first is 1 / 2^16: below the probability means up.
  MwcRandom first;
  EXPECT_EQ(RoundToFloat16(1.0f + 0x1p-22f, &first), 1.0f + 0x1p-10f);  // 2^-12 > 2^-16.
  // The second is 324000000 / 1179648000 = 0.2747.
  MwcRandom second;
  (void)second.Next();
  EXPECT_EQ(RoundToFloat16(1.0f + 0.27f * 0x1p-10f, &second), 1.0f);
  MwcRandom third;
  (void)third.Next();
  EXPECT_EQ(RoundToFloat16(1.0f + 0.28f * 0x1p-10f, &third), 1.0f + 0x1p-10f);
}

TEST(RoundToFloat16, StaysFiniteAndKeepsWhatIsNot) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  MwcRandom random;
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(RoundToFloat16(65519.0f, &random), 65504.0f);
    EXPECT_EQ(RoundToFloat16(1e30f, &random), 65504.0f);
    EXPECT_EQ(RoundToFloat16(-1e30f, &random), -65504.0f);
    EXPECT_EQ(RoundToFloat16(kInfinity, &random), kInfinity);
    EXPECT_EQ(RoundToFloat16(-kInfinity, &random), -kInfinity);
    EXPECT_TRUE(std::isnan(RoundToFloat16(std::nanf(""), &random)));
  }
}

template <typename Config>
std::unique_ptr<Optimizer> MakeRounding(const Config& base, std::size_t dim) {
  OptimizerConfig config;
  config.type = base;
  config.stochastic_rounding_float16 = true;
  return MakeOptimizer(config, dim);
}

TEST(StochasticRounding, RoundsTheWeightsAfterTheStepAndNothingElse) {
  const auto optimizer = MakeRounding(AdagradConfig(), 3);
  std::vector<float> row(7, 0.3f);  // Weights, state, and a neighbour's weight.
  auto* state = reinterpret_cast<std::byte*>(row.data() + 3);
  optimizer->InitState(state);
  const std::vector<float> grad = {1.0f, -2.0f, 0.7f};
  for (int i = 0; i < 100; ++i) {
    optimizer->Step(row.data(), state, grad.data(), 0.01f, i);
    for (int j = 0; j < 3; ++j) ASSERT_TRUE(IsHalf(row[j])) << row[j];
    ASSERT_EQ(row[6], 0.3f);
  }
  EXPECT_FALSE(IsHalf(row[3]));  // The accumulator keeps its width.
}

TEST(StochasticRounding, EachThreadStartsWithTheFirstDraws) {
  const auto optimizer = MakeRounding(SgdConfig(), 4);
  const auto run = [&](std::vector<float>* w) {
    const std::vector<float> grad = {1.0f, 2.0f, 3.0f, 4.0f};
    for (int i = 0; i < 50; ++i) optimizer->Step(w->data(), nullptr, grad.data(), 0.01f, 0);
  };
  std::vector<float> first(4), second(4);
  std::thread([&] { run(&first); }).join();
  std::thread([&] { run(&second); }).join();
  EXPECT_EQ(first, second);

  // The same by hand.
  MwcRandom random;
  std::vector<float> expected(4);
  for (int i = 0; i < 50; ++i) {
    for (int j = 0; j < 4; ++j) {
      expected[j] = RoundToFloat16(expected[j] - 0.01f * static_cast<float>(j + 1), &random);
    }
  }
  EXPECT_EQ(first, expected);
}

TEST(StochasticRounding, PassesTheGlobalStepOn) {
  const auto optimizer = MakeRounding(BatchSoftmaxConfig(), 1);
  float w = 0.0f;
  std::byte state[8];
  optimizer->InitState(state);
  const float grad = 0.0f;
  optimizer->Step(&w, state, &grad, 0.5f, 8);
  EXPECT_EQ(w, 4.0f);  // 0.5 * 0 + 0.5 * (8 - 0), a float16 number.
}

}  // namespace
}  // namespace monolith::core
