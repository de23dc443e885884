#include "core/data/fid_buffer.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "core/data/fid.h"
#include "core/testing/bytes.h"

namespace monolith::core {
namespace {

using testing::InExactMemory;

std::vector<std::int64_t> All(const FidBuffer& buffer) { return {buffer.begin(), buffer.end()}; }

// A Feature with a list of fids of a version, packed: 0a or 12 SIZE 0a SIZE FIDS.
std::string MakeFeature(int version, const std::vector<std::uint64_t>& fids) {
  const std::size_t size = fids.size() * sizeof(std::uint64_t);
  std::string feature(version == 1 ? "\x0a" : "\x12");
  feature += static_cast<char>(size + 2);
  feature += "\x0a";
  feature += static_cast<char>(size);
  return feature + std::string(reinterpret_cast<const char*>(fids.data()), size);
}

TEST(FidBuffer, GrowsAndKeepsWhatItHas) {
  FidBuffer buffer;
  EXPECT_EQ(buffer.begin(), buffer.end());
  std::vector<std::int64_t> expected;
  for (std::int64_t i = 0; i < 1000; ++i) {
    *buffer.Extend(1) = i;
    expected.push_back(i);
  }
  EXPECT_EQ(All(buffer), expected);
  buffer.Truncate(2);
  *buffer.Extend(1) = 7;
  EXPECT_EQ(All(buffer), (std::vector<std::int64_t>{0, 1, 7}));
}

TEST(FidBuffer, UsualFeaturesAreOnePackedListAndNothingElse) {
  for (std::size_t count = 0; count < 16; ++count) {
    const std::vector<std::uint64_t> fids(count, 9);
    FidBuffer buffer;
    InExactMemory(MakeFeature(2, fids), [&](std::string_view feature) {
      ASSERT_EQ(buffer.AppendUsual(feature, true), true);
      EXPECT_EQ(buffer.size(), count);
      EXPECT_FALSE(buffer.AppendUsual(feature.substr(0, feature.size() - 1), true));
    });
    EXPECT_FALSE(buffer.AppendUsual(MakeFeature(2, fids) + std::string(8, 0), true));
    std::string wrong = MakeFeature(2, fids);
    for (const int at : {0, 1, 2, 3}) {
      wrong[at] ^= 0x40;
      EXPECT_FALSE(buffer.AppendUsual(wrong, true)) << at;
      wrong[at] ^= 0x40;
    }
    EXPECT_EQ(buffer.size(), count);
  }
  EXPECT_FALSE(FidBuffer().AppendUsual("", true));
}

TEST(FidBuffer, VersionOneBecomesVersionTwoIfAsked) {
  const std::uint64_t fid = FidV1(3, 8).value();
  FidBuffer buffer;
  ASSERT_TRUE(buffer.AppendUsual(MakeFeature(1, {fid}), true));
  ASSERT_TRUE(buffer.AppendUsual(MakeFeature(1, {fid}), false));
  ASSERT_TRUE(buffer.AppendUsual(MakeFeature(2, {fid}), true));
  const auto kept = static_cast<std::int64_t>(fid);
  EXPECT_EQ(All(buffer), (std::vector<std::int64_t>{static_cast<std::int64_t>(FidV2(3, 8).value()),
                                                    kept, kept}));
}

}  // namespace
}  // namespace monolith::core
