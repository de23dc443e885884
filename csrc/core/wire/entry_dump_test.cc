#include "core/wire/entry_dump.h"

#include <gtest/gtest.h>

#include <vector>

#include "core/testing/bytes.h"

namespace monolith::core {
namespace {

using testing::ForEachDamage;
using testing::FromHex;
using testing::ToHex;

std::vector<float> Floats(const FloatsView& view) {
  std::vector<float> floats(view.size());
  view.CopyTo(floats.data());
  return floats;
}

TEST(ParseEntryDump, SgdRecord) {
  const std::string record = FromHex("09 0100000000000000 15 0000803f 1a04 0a02 1200 2064");
  EntryDumpView view;
  ASSERT_TRUE(ParseEntryDump(record, &view));
  EXPECT_TRUE(view.has_id);
  EXPECT_EQ(view.id, 1);
  EXPECT_EQ(Floats(view.num), std::vector<float>{1.0f});
  EXPECT_TRUE(view.has_opt);
  EXPECT_EQ(ToHex(view.opt), "0a021200");
  EXPECT_EQ(view.last_update_ts_sec, 100);
}

TEST(ParseEntryDump, AdagradRecordOfANegativeId) {
  const std::string record = FromHex(
      "09ffffffffffffffff 150000003f 15000000bf 1a0e 0a0c 0a0a 0d0000803f 0d00000040 20d209");
  EntryDumpView view;
  ASSERT_TRUE(ParseEntryDump(record, &view));
  EXPECT_EQ(view.id, -1);
  EXPECT_EQ(Floats(view.num), (std::vector<float>{0.5f, -0.5f}));
  EXPECT_EQ(ToHex(view.opt), "0a0c0a0a0d0000803f0d00000040");
  EXPECT_EQ(view.last_update_ts_sec, 1234);
}

TEST(ParseEntryDump, AcceptsPackedValuesInAnyOrderAndUnknownFields) {
  const std::string record = FromHex("2064 7a0161 12080000003f000000bf 1a00 090200000000000000");
  EntryDumpView view;
  ASSERT_TRUE(ParseEntryDump(record, &view));
  EXPECT_EQ(view.id, 2);
  EXPECT_EQ(Floats(view.num), (std::vector<float>{0.5f, -0.5f}));
  EXPECT_TRUE(view.has_opt);
  EXPECT_TRUE(view.opt.empty());
  EXPECT_EQ(view.last_update_ts_sec, 100);
}

TEST(ParseEntryDump, ForgetsTheRecordBefore) {
  EntryDumpView view;
  const std::string record = FromHex("09 0100000000000000 15 0000803f 1a04 0a02 1200 2064");
  ASSERT_TRUE(ParseEntryDump(record, &view));
  ASSERT_TRUE(ParseEntryDump("", &view));
  EXPECT_FALSE(view.has_id);
  EXPECT_EQ(view.num.size(), 0u);
  EXPECT_FALSE(view.has_opt);
  EXPECT_EQ(view.last_update_ts_sec, 0);
}

TEST(ParseEntryDump, RefusesMalformedRecords) {
  EntryDumpView view;
  for (const char* hex : {"0901", "15000080", "1203000000", "1a05", "2080", "1a001a00", "07"}) {
    EXPECT_FALSE(ParseEntryDump(FromHex(hex), &view)) << hex;
  }
}

TEST(ParseEntryDump, DamagedRecordsNeverLeadOutside) {
  const std::string record = FromHex(
      "09ffffffffffffffff 150000003f 15000000bf 12080000003f000000bf 1a0e 0a0c 0a0a 0d0000803f "
      "0d00000040 20d209");
  ForEachDamage(record, 20000, [](std::string_view damaged) {
    EntryDumpView view;
    if (ParseEntryDump(damaged, &view)) {
      ASSERT_LE(view.num.size() * 4, damaged.size());
      (void)Floats(view.num);
      (void)ToHex(view.opt);
    }
  });
}

}  // namespace
}  // namespace monolith::core
