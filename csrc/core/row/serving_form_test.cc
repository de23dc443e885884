#include "core/row/serving_form.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <vector>

namespace monolith::core {
namespace {

SegmentConfig Segment(CompressorConfig compressor, std::int32_t dim) {
  SegmentConfig segment;
  segment.init_config.emplace().type = ZerosConfig();
  segment.opt_config.emplace().type = SgdConfig();
  segment.comp_config = std::move(compressor);
  segment.dim_size = dim;
  return segment;
}

template <typename Config>
EntryConfig Rows(const Config& member, std::int32_t dim) {
  EntryConfig config;
  config.segments.push_back(Segment({member, 0}, dim));
  return config;
}

TEST(ServingFormTest, ARowHasTheBytesOfItsCompressorsAndUnpacksToWhatIsServed) {
  EntryConfig config = Rows(Fp32Config(), 1);
  config.segments.push_back(Segment({Fp16Config(), 0}, 3));
  config.segments.push_back(Segment({FixedR8Config{0, 1.0f}, 0}, 2));
  const ServingForm form(config);
  EXPECT_EQ(form.dim(), 6u);
  EXPECT_EQ(form.row_bytes(), 12u);  // 4 + 3 * 2 + 2.
  EXPECT_FALSE(form.is_raw());
  // Two rows. 0.1 is 1638 / 2^14 as float16, and 13 / 128 as a multiple of 1/128.
  const std::vector<float> values = {0.1f, 0.1f, 1, 2, 0.1f, -0.5f, 7, -1, 0, 3, 0, 0.25f};
  std::vector<std::byte> memory(2 * 12 + 2, std::byte{0xEE});
  form.Pack(values.data(), 2, memory.data() + 1);  // At an odd address.
  EXPECT_EQ(memory.front(), std::byte{0xEE});
  EXPECT_EQ(memory.back(), std::byte{0xEE});
  std::vector<float> served(values.size());
  form.Unpack(memory.data() + 1, 2, served.data());
  EXPECT_EQ(served, (std::vector<float>{0.1f, 1638.0f / 16384, 1, 2, 13.0f / 128, -0.5f, 7, -1, 0,
                                        3, 0, 0.25f}));
}

TEST(ServingFormTest, WhatIsBetweenRowsIsNotWhatMemoryHeld) {
  const ServingForm form(Rows(Fp16Config(), 1));
  ASSERT_EQ(form.row_bytes(), 4u);
  const float value = 1.0f;  // 0x3C00.
  std::vector<std::byte> packed(4, std::byte{0xEE});
  form.Pack(&value, 1, packed.data());
  EXPECT_EQ(packed, (std::vector<std::byte>{std::byte{0}, std::byte{0x3C}, {}, {}}));
}

TEST(ServingFormTest, FloatsAreRaw) {
  EXPECT_TRUE(ServingForm(Rows(Fp32Config(), 3)).is_raw());
  EXPECT_EQ(ServingForm(Rows(Fp32Config(), 3)).row_bytes(), 12u);
}

TEST(ServingFormTest, FingerprintsTellFormsApartAndNotTrainingFromServing) {
  const auto of = [](const EntryConfig& config) { return ServingForm(config).fingerprint(); };
  EntryConfig served = Rows(Fp16Config(), 4);
  served.entry_type = EntryConfig::Type::kServing;
  EXPECT_EQ(of(served), of(Rows(Fp16Config(), 4)));
  EntryConfig by_member = Rows(Fp16Config{4}, 4);
  by_member.segments[0].dim_size.reset();
  by_member.entry_type = EntryConfig::Type::kServing;
  EXPECT_EQ(of(by_member), of(served));
  EXPECT_NE(of(Rows(Fp16Config(), 5)), of(served));
  EXPECT_NE(of(Rows(Fp32Config(), 4)), of(served));
  EXPECT_NE(of(Rows(FixedR8Config{0, 1.0f}, 4)), of(Rows(FixedR8Config{0, 2.0f}, 4)));
  OneBitConfig loud;
  loud.amplitude = 2.0f;
  EXPECT_NE(of(Rows(OneBitConfig(), 4)), of(Rows(loud, 4)));
}

TEST(ServingFormTest, RowsThatAreNotServedHaveNone) {
  EntryConfig config = Rows(Fp16Config(), 4);
  config.segments[0].comp_config.reset();
  EXPECT_THROW(ServingForm{config}, std::invalid_argument);
}

}  // namespace
}  // namespace monolith::core
