#include "core/row/compressor.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/row/half.h"

namespace monolith::core {
namespace {

using Row = std::vector<float>;

template <typename Config>
std::unique_ptr<Compressor> Make(const Config& member, std::size_t dim) {
  CompressorConfig config;
  config.type = member;
  auto compressor = MakeCompressor(config, dim);
  EXPECT_EQ(compressor->dim(), dim);
  return compressor;
}

// Through memory at an odd address.
template <typename Config>
Row RoundTrip(const Config& member, const Row& values) {
  const auto compressor = Make(member, values.size());
  std::vector<std::byte> memory(compressor->bytes() + 2, std::byte{0xEE});
  compressor->Encode(values.data(), memory.data() + 1);
  EXPECT_EQ(memory.front(), std::byte{0xEE});
  EXPECT_EQ(memory.back(), std::byte{0xEE});
  Row decoded(values.size());
  compressor->Decode(memory.data() + 1, decoded.data());
  return decoded;
}

template <typename Function>
std::string ErrorOf(Function&& function) {
  try {
    function();
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "no error";
}

TEST(Fp32, Copies) {
  EXPECT_EQ(RoundTrip(Fp32Config(), {0.1f, -1e30f, 0.0f}), (Row{0.1f, -1e30f, 0.0f}));
  EXPECT_EQ(Make(Fp32Config(), 3)->bytes(), 12u);
}

TEST(Fp16, RoundsToTheNearest) {
  // 0.1 is 0x2E66 in float16, which is 1638 / 2^14.
  EXPECT_EQ(RoundTrip(Fp16Config(), {0.1f, -2.5f, 0.0f, 65504.0f}),
            (Row{1638.0f / 16384.0f, -2.5f, 0.0f, 65504.0f}));
  EXPECT_EQ(Make(Fp16Config(), 3)->bytes(), 6u);
}

TEST(Fp16, WideRowsAreEncodedAsElementsAre) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0.0f, 0.01f);
  Row values(67);
  for (float& value : values) value = normal(random);
  values[3] = 1e-6f;  // Subnormal as a float16.
  const Row decoded = RoundTrip(Fp16Config(), values);
  for (std::size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(decoded[i], FloatFromHalf(HalfFromFloat(values[i])));
    EXPECT_NEAR(decoded[i], values[i], std::abs(values[i]) * 0x1p-11 + 0x1p-25);
  }
}

FixedR8Config Range(float r) {
  FixedR8Config config;
  config.r = r;
  return config;
}

TEST(FixedR8, MultiplesOfAStep) {
  constexpr float kStep = 5.0f / 128.0f;
  const Row decoded =
      RoundTrip(Range(5.0f), {100.0f, 1.4f * kStep, 1.6f * kStep, -1.4f * kStep, -1.6f * kStep,
                              -100.0f, 0.0f, std::numeric_limits<float>::quiet_NaN(), 1e38f,
                              std::numeric_limits<float>::infinity()});
  EXPECT_NEAR(decoded[0], 5.0f, kStep);
  EXPECT_EQ(decoded[0], 127 * kStep);
  EXPECT_EQ(decoded[1], kStep);
  EXPECT_EQ(decoded[2], 2 * kStep);
  EXPECT_EQ(decoded[3], -kStep);
  EXPECT_EQ(decoded[4], -2 * kStep);
  EXPECT_EQ(decoded[5], -128 * kStep);
  EXPECT_EQ(decoded[6], 0.0f);
  EXPECT_EQ(decoded[7], 0.0f);
  EXPECT_EQ(decoded[8], 127 * kStep);
  EXPECT_EQ(decoded[9], 127 * kStep);
  EXPECT_EQ(Make(Range(5.0f), 3)->bytes(), 3u);
}

TEST(FixedR8, HalvesGoAwayFromZeroAndEveryStepSurvives) {
  const FixedR8 code(128.0f);  // A step is 1.
  EXPECT_EQ(code.Encode(0.5f), 1);
  EXPECT_EQ(code.Encode(-0.5f), -1);
  EXPECT_EQ(code.Encode(0.49f), 0);
  EXPECT_EQ(code.Encode(127.4f), 127);
  for (int n = -128; n <= 127; ++n) {
    EXPECT_EQ(code.Encode(static_cast<float>(n)), n);
    EXPECT_EQ(code.Decode(static_cast<std::int8_t>(n)), static_cast<float>(n));
  }
}

TEST(OneBit, KeepsTheSign) {
  OneBitConfig config;
  config.amplitude = 1.0f;
  EXPECT_EQ(RoundTrip(config, {100.0f, 0.1f, 1e-5f, 0.0f, -1e-5f, -0.1f, -100.0f}),
            (Row{1.0f, 1.0f, 1.0f, -1.0f, -1.0f, -1.0f, -1.0f}));
  config.amplitude = 0.25f;
  EXPECT_EQ(RoundTrip(config, {3.0f, -3.0f}), (Row{0.25f, -0.25f}));
  EXPECT_EQ(Make(config, 3)->bytes(), 3u);
}

TEST(Compressor, ZeroBytesDecodeToZeros) {
  const std::vector<std::byte> zeros(16);
  for (const auto& make : {Make(Fp32Config(), 4), Make(Fp16Config(), 4), Make(Range(1.0f), 4),
                           Make(OneBitConfig(), 4)}) {
    Row values(4, 77.0f);
    make->Decode(zeros.data(), values.data());
    EXPECT_EQ(values, Row(4, 0.0f));
  }
}

TEST(MakeCompressor, RefusesWhatItCannotMake) {
  CompressorConfig config;
  EXPECT_EQ(ErrorOf([&] { (void)MakeCompressor(config, 1); }),
            "FloatCompressorConfig must be set type. Got ``.");
  config.unknown_member = 5;
  EXPECT_EQ(ErrorOf([&] { (void)MakeCompressor(config, 1); }),
            "Unknown tpye of float compressor. Got `unknown member 5`.");
  EXPECT_EQ(ErrorOf([&] { (void)Make(Range(0.0f), 1); }),
            "fixed_r8's r must be positive, got 0.000000.");
  EXPECT_THROW((void)Make(Range(std::numeric_limits<float>::quiet_NaN()), 1),
               std::invalid_argument);
  OneBitConfig one_bit;
  one_bit.step_size = 0;
  EXPECT_EQ(ErrorOf([&] { (void)Make(one_bit, 1); }),
            "one_bit's step_size must be positive, got 0.");
  one_bit.step_size = 1;
  one_bit.amplitude = -1.0f;
  EXPECT_EQ(ErrorOf([&] { (void)Make(one_bit, 1); }),
            "one_bit's amplitude must be positive, got -1.000000.");
}

TEST(MakeCompressor, SettingsMustBePositiveAndFinite) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  for (const float bad : {0.0f, -1.0f, kInfinity, -kInfinity, kNaN}) {
    EXPECT_THROW((void)Make(Range(bad), 1), std::invalid_argument) << bad;
    for (float OneBitConfig::* setting :
         {&OneBitConfig::init_scale, &OneBitConfig::max_scale, &OneBitConfig::amplitude}) {
      OneBitConfig one_bit;
      EXPECT_NO_THROW((void)Make(one_bit, 1));
      one_bit.*setting = bad;
      EXPECT_THROW((void)Make(one_bit, 1), std::invalid_argument) << bad;
    }
  }
  OneBitConfig one_bit;
  one_bit.step_size = -1;
  EXPECT_THROW((void)Make(one_bit, 1), std::invalid_argument);
}

}  // namespace
}  // namespace monolith::core
