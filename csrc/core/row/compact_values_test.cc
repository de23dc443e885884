#include "core/row/compact_values.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <stdexcept>
#include <vector>

#include "core/row/half.h"

namespace monolith::core {
namespace {

using Floats = std::vector<float>;
using Bytes = std::vector<std::byte>;
using Storage = EntryConfig::Storage;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

Bytes Encode(Storage storage, const Floats& values) {
  const CompactValues compact(storage, values.size());
  Bytes bytes(compact.bytes(), std::byte{0xAA});
  compact.Encode(values.data(), bytes.data());
  return bytes;
}

Floats Decode(Storage storage, std::size_t dim, const Bytes& bytes) {
  Floats values(dim);
  CompactValues(storage, dim).Decode(bytes.data(), values.data());
  return values;
}

Floats RoundTrip(Storage storage, const Floats& values) {
  return Decode(storage, values.size(), Encode(storage, values));
}

Bytes EncodeAtRandom(Storage storage, const Floats& values, RoundingRandom* random) {
  const CompactValues compact(storage, values.size());
  Bytes bytes(compact.bytes());
  compact.EncodeAtRandom(values.data(), random->Next(), bytes.data());
  return bytes;
}

// Rows of all magnitudes, with zeros and equal elements among them.
std::vector<Floats> SomeRows() {
  std::mt19937 random(1);
  std::uniform_real_distribution<float> unit(-1.0f, 1.0f);
  std::vector<Floats> rows = {
      {0.0f}, {-0.0f, 0.0f}, {1.0f, 1.0f}, {65504.0f, 1e-7f}, {127.0f, 1.0f}};
  for (int exponent = -140; exponent <= 127; ++exponent) {
    for (const std::size_t dim : {1u, 3u, 16u, 33u}) {
      Floats row(dim);
      for (float& value : row) value = std::ldexp(unit(random), exponent);
      rows.push_back(row);
    }
  }
  return rows;
}

TEST(CompactValues, TakesTwoBytesOrOneAndOne) {
  EXPECT_EQ(CompactValues(Storage::kFloat16, 16).bytes(), 32u);
  EXPECT_EQ(CompactValues(Storage::kInt8, 16).bytes(), 17u);
}

TEST(CompactValues, RefusesOtherStorage) {
  EXPECT_THROW(CompactValues(Storage::kFloat32, 1), std::invalid_argument);
  EXPECT_THROW(CompactValues(static_cast<Storage>(9), 1), std::invalid_argument);
}

TEST(CompactValues, ZeroBytesAreZeros) {
  for (const Storage storage : {Storage::kFloat16, Storage::kInt8}) {
    const Bytes zeros(CompactValues(storage, 5).bytes());
    EXPECT_EQ(Decode(storage, 5, zeros), Floats(5));
    EXPECT_EQ(Encode(storage, Floats(5)), zeros);
  }
}

TEST(CompactValues, HalvesAreTheNearestAndNeverInfinite) {
  for (const Floats& row : SomeRows()) {
    const Floats rounded = RoundTrip(Storage::kFloat16, row);
    for (std::size_t i = 0; i < row.size(); ++i) {
      const float limited = std::clamp(row[i], -65504.0f, 65504.0f);
      EXPECT_EQ(rounded[i], FloatFromHalf(HalfFromFloat(limited))) << row[i];
    }
  }
  EXPECT_EQ(RoundTrip(Storage::kFloat16, {1e6f, -1e6f}), (Floats{65504.0f, -65504.0f}));
  const Floats special = RoundTrip(Storage::kFloat16, {kInfinity, -kInfinity, std::nanf("")});
  EXPECT_EQ(special[0], kInfinity);
  EXPECT_EQ(special[1], -kInfinity);
  EXPECT_TRUE(std::isnan(special[2]));
}

TEST(CompactValues, StepsAreTheNearestOfTheLeastPowerOfTwo) {
  for (const Floats& row : SomeRows()) {
    float greatest = 0.0f;
    for (const float value : row) greatest = std::max(greatest, std::abs(value));
    int exponent = -126;
    while (greatest > std::ldexp(127.0, exponent)) ++exponent;
    const double step = std::ldexp(1.0, exponent);
    const Floats rounded = RoundTrip(Storage::kInt8, row);
    for (std::size_t i = 0; i < row.size(); ++i) {
      EXPECT_EQ(rounded[i], static_cast<float>(std::round(row[i] / step) * step)) << row[i];
    }
  }
}

TEST(CompactValues, StepsOfWhatIsNotFiniteAreNan) {
  for (const float value : {kInfinity, -kInfinity, std::nanf("")}) {
    const Bytes bytes = Encode(Storage::kInt8, {1.0f, value, 0.0f});
    const Floats values = Decode(Storage::kInt8, 3, bytes);
    for (const float read : values) EXPECT_TRUE(std::isnan(read));
    EXPECT_EQ(Encode(Storage::kInt8, values), bytes);
  }
}

TEST(CompactValues, EncodingWhatWasDecodedGivesTheSameBytes) {
  RoundingRandom random;
  for (const Storage storage : {Storage::kFloat16, Storage::kInt8}) {
    for (const Floats& row : SomeRows()) {
      for (const Bytes& bytes : {Encode(storage, row), EncodeAtRandom(storage, row, &random)}) {
        const Floats values = Decode(storage, row.size(), bytes);
        ASSERT_EQ(Encode(storage, values), bytes);
        ASSERT_EQ(EncodeAtRandom(storage, values, &random), bytes);
      }
    }
  }
}

TEST(CompactValues, RoundingAtRandomTakesOneOfTheTwoNeighbours) {
  RoundingRandom random;
  for (const Floats& row : SomeRows()) {
    const Floats half =
        Decode(Storage::kFloat16, row.size(), EncodeAtRandom(Storage::kFloat16, row, &random));
    const Floats steps =
        Decode(Storage::kInt8, row.size(), EncodeAtRandom(Storage::kInt8, row, &random));
    float greatest = 0.0f;
    for (const float value : row) greatest = std::max(greatest, std::abs(value));
    for (std::size_t i = 0; i < row.size(); ++i) {
      const float limited = std::clamp(row[i], -65504.0f, 65504.0f);
      // Ten bits behind the first, and never finer than 2^-24.
      EXPECT_LT(std::abs(half[i] - limited), std::max(std::abs(limited) * 0x1p-10f, 0x1p-24f));
      // A step is less than greatest / 63.5, and never less than 2^-126.
      EXPECT_LT(std::abs(steps[i] - row[i]), std::max(greatest / 63.5f, 0x1p-126f) * 1.0001f);
    }
  }
}

// The mean of 40000 roundings: its standard deviation is at most half a gap by the root of that,
// 1/400 of a gap; 5 of these are asked for.
TEST(CompactValues, RoundingAtRandomIsRightOnAverage) {
  // The first element sets the step of the 8-bit form: 100 < 127, so that it is 1.
  const Floats row = {100.0f, 0.25f, -0.9f, 63.01f, -99.5f, 1e-3f};
  constexpr int kTimes = 40000;
  for (const Storage storage : {Storage::kFloat16, Storage::kInt8}) {
    RoundingRandom random;
    std::vector<double> sums(row.size());
    for (int i = 0; i < kTimes; ++i) {
      const Floats values = Decode(storage, row.size(), EncodeAtRandom(storage, row, &random));
      for (std::size_t j = 0; j < row.size(); ++j) sums[j] += values[j];
    }
    for (std::size_t j = 0; j < row.size(); ++j) {
      const double gap = storage == Storage::kInt8 ? 1.0 : std::abs(row[j]) * 0x1p-10;
      EXPECT_NEAR(sums[j] / kTimes, row[j], gap * 5 / 400) << j;
    }
  }
}

TEST(CompactValues, SmallestHalvesAreRightOnAverage) {
  // A quarter of the least float16, which is 2^-24.
  RoundingRandom random;
  constexpr int kTimes = 40000;
  int ups = 0;
  for (int i = 0; i < kTimes; ++i) {
    const Floats value =
        Decode(Storage::kFloat16, 1, EncodeAtRandom(Storage::kFloat16, {0x1p-26f}, &random));
    ASSERT_TRUE(value[0] == 0.0f || value[0] == 0x1p-24f);
    ups += value[0] != 0.0f;
  }
  EXPECT_NEAR(ups / double{kTimes}, 0.25, 0.0125);
}

}  // namespace
}  // namespace monolith::core
