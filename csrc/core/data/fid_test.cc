#include "core/data/fid.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

namespace monolith::core {
namespace {

constexpr std::uint64_t kOne = 1;

template <typename F>
std::string Refusal(F make) {
  try {
    make();
  } catch (const std::invalid_argument& e) {
    return e.what();
  }
  return "accepted";
}

TEST(Fid, SlotAndSignatureAreTheBitsOfTheValue) {
  EXPECT_EQ(FidV1(7, 5).value(), (std::uint64_t{7} << 54) + 5);
  EXPECT_EQ(FidV2(7, 5).value(), (std::uint64_t{7} << 48) + 5);
  EXPECT_EQ(FidV1(1023, kOne << 54).signature(), 0u);
  EXPECT_EQ(FidV2(32767, kOne << 48).signature(), 0u);
  EXPECT_EQ(FidV1(1023, 3).slot(), 1023u);
  EXPECT_EQ(FidV2(32767, 3).slot(), 32767u);
  // Bit 63 is no part of a v2 slot.
  EXPECT_EQ(FidV2(kOne << 63 | kOne << 48).slot(), 1u);
}

TEST(Fid, ASlotThatDoesNotExistIsRefused) {
  EXPECT_EQ(Refusal([] { (void)FidV1(1024, 0); }), "slot should be less than 1024, while got 1024");
  EXPECT_EQ(Refusal([] { (void)FidV2(32768, 0); }),
            "slot should be less than 32768, while got 32768");
}

TEST(Fid, V1BecomesV2WithTheSameSlotAndTheLowBitsOfTheSignature) {
  const FidV2 fid(ConvertV1ToV2(FidV1(549, (kOne << 50) + 12).value()));
  EXPECT_EQ(fid.slot(), 549u);
  EXPECT_EQ(fid.signature(), 12u);
}

TEST(Fid, DebugStringNamesVersionSlotAndSignature) {
  EXPECT_EQ(FidV2(1, 2).DebugString(), "281474976710658(v2|slot=1|sig=2)");    // 2^48 + 2
  EXPECT_EQ(FidV1(1, 2).DebugString(), "18014398509481986(v1|slot=1|sig=2)");  // 2^54 + 2
}

}  // namespace
}  // namespace monolith::core
