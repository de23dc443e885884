#include "core/dense/global_norm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

namespace monolith::core {
namespace {

TEST(SumOfSquares, IsExactForSmallIntegers) {
  for (std::size_t n = 0; n < 70; ++n) {
    std::vector<float> floats(n);
    std::vector<double> doubles(n);
    double expected = 0;
    for (std::size_t i = 0; i < n; ++i) {
      floats[i] = doubles[i] = static_cast<double>(i) - 20;
      expected += doubles[i] * doubles[i];
    }
    EXPECT_EQ(SumOfSquares(floats.data(), n), expected) << n;
    EXPECT_EQ(SumOfSquares(doubles.data(), n), expected) << n;
  }
}

TEST(SumOfSquares, OfFloatsDoesNotOverflowOrLoseSmallOnes) {
  const float large[] = {3e30f, 4e30f};
  EXPECT_NEAR(SumOfSquares(large, 2) / 25e60, 1, 1e-6);
  // In float a million ones would still count, but the ones after 2^24 would not.
  const std::vector<float> ones(20'000'003, 1.0f);
  EXPECT_EQ(SumOfSquares(ones.data(), ones.size()), 20'000'003.0);
}

TEST(SumOfSquares, PassesOnInfinityAndNan) {
  std::vector<float> values(40, 1.0f);
  values[33] = -std::numeric_limits<float>::infinity();
  EXPECT_EQ(SumOfSquares(values.data(), values.size()), std::numeric_limits<double>::infinity());
  values[2] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(std::isnan(SumOfSquares(values.data(), values.size())));
}

TEST(Scale, MultipliesEveryElementAndNothingBeyond) {
  for (std::size_t n = 0; n < 40; ++n) {
    std::vector<float> values(n);
    for (std::size_t i = 0; i < n; ++i) values[i] = static_cast<float>(i);
    std::vector<float> out(n + 1, -1.0f);
    Scale(values.data(), n, 0.5f, out.data());
    for (std::size_t i = 0; i < n; ++i) EXPECT_EQ(out[i], 0.5f * values[i]);
    EXPECT_EQ(out[n], -1.0f);
  }
}

TEST(Scale, ByZeroTurnsInfinityIntoNan) {
  const double values[] = {std::numeric_limits<double>::infinity(), 2.0};
  double out[2];
  Scale(values, 2, 0.0, out);
  EXPECT_TRUE(std::isnan(out[0]));
  EXPECT_EQ(out[1], 0.0);
}

}  // namespace
}  // namespace monolith::core
