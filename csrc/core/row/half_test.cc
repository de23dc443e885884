#include "core/row/half.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace monolith::core {
namespace {

constexpr std::uint16_t kInfinity = 0x7C00;

// The value of a float16 by its definition.
double Value(std::uint16_t half) {
  const int exponent = half >> 10 & 31;
  const int fraction = half & 1023;
  const double magnitude =
      exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
  return (half & 0x8000) != 0 ? -magnitude : magnitude;
}

// The nearest float16 of a positive number, by search; ties go to the even one.
std::uint16_t NearestHalf(double value) {
  static const std::vector<double> values = [] {
    std::vector<double> all;
    for (std::uint16_t half = 0; half <= kInfinity; ++half) all.push_back(Value(half));
    return all;  // Infinity stands where 65536 would be, as the rounding rule wants.
  }();
  if (value >= values.back()) return kInfinity;
  const auto up = std::upper_bound(values.begin(), values.end(), value);
  const auto above = static_cast<std::uint16_t>(up - values.begin());
  const auto below = static_cast<std::uint16_t>(above - 1);
  const double to_below = value - values[below];
  const double to_above = values[above] - value;
  if (to_below == to_above) return below % 2 == 0 ? below : above;
  return to_below < to_above ? below : above;
}

TEST(Half, EveryHalfHasItsValueAndComesBack) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    const float value = FloatFromHalf(half);
    if ((half & kInfinity) != kInfinity) {
      ASSERT_EQ(value, Value(half)) << bits;
      ASSERT_EQ(std::signbit(value), (half & 0x8000) != 0) << bits;
      ASSERT_EQ(HalfFromFloat(value), half);
    } else if ((half & 1023) == 0) {
      ASSERT_TRUE(std::isinf(value));
      ASSERT_EQ(HalfFromFloat(value), half);
    } else {
      ASSERT_TRUE(std::isnan(value));
      ASSERT_TRUE(std::isnan(FloatFromHalf(HalfFromFloat(value))));
    }
  }
}

void ExpectNearest(float value) {
  ASSERT_EQ(HalfFromFloat(value), NearestHalf(value)) << value;
  ASSERT_EQ(HalfFromFloat(-value), NearestHalf(value) | 0x8000) << -value;
}

TEST(Half, RoundsToTheNearestWithTiesToEven) {
  for (std::uint16_t half = 0; half < kInfinity; ++half) {
    const auto middle = static_cast<float>((Value(half) + Value(half + 1)) / 2);
    ExpectNearest(middle);
    ExpectNearest(std::nextafter(middle, 0.0f));
    ExpectNearest(std::nextafter(middle, 1e9f));
  }
}

TEST(Half, RoundsRandomNumbers) {
  std::mt19937 random(3);
  for (int i = 0; i < 200000; ++i) {
    const float value = half_internal::FromBits(random() & 0x7FFFFFFFu);
    if (!std::isnan(value)) ExpectNearest(value);
  }
}

TEST(Half, OverflowsToInfinity) {
  EXPECT_EQ(HalfFromFloat(65504.0f), 0x7BFF);
  EXPECT_EQ(HalfFromFloat(65519.99f), 0x7BFF);
  EXPECT_EQ(HalfFromFloat(65520.0f), kInfinity);
  EXPECT_EQ(HalfFromFloat(-1e30f), 0xFC00);
  EXPECT_EQ(HalfFromFloat(std::numeric_limits<float>::denorm_min()), 0);
}

}  // namespace
}  // namespace monolith::core
