#include "core/filter/table_filter.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "core/filter/dummy_filter.h"
#include "core/filter/probabilistic_filter.h"
#include "core/filter/sliding_hash_filter.h"

namespace monolith::core {
namespace {

SlotThresholds Thresholds(std::uint32_t threshold) {
  SlotOccurrenceThresholdConfig config;
  config.default_occurrence_threshold = threshold;
  return SlotThresholds(config);
}

// At which occurrence the id is admitted.
int FirstAdmitted(AdmissionFilter* filter, std::int64_t id) {
  for (int occurrence = 1; occurrence < 100; ++occurrence) {
    if (filter->Admit(id, 1)) return occurrence;
  }
  return 100;
}

TEST(TableFilterTest, TheTablesThresholdIsInPlaceOfTheSlots) {
  SlidingHashFilter shared(1000, 7, Thresholds(5));
  for (const std::uint32_t threshold : {0u, 1u, 2u, 15u}) {
    TableFilter filter(&shared, "table " + std::to_string(threshold), threshold);
    EXPECT_EQ(FirstAdmitted(&filter, 7), static_cast<int>(threshold) + 1);
  }
  EXPECT_EQ(FirstAdmitted(&shared, 7), 6);
}

TEST(TableFilterTest, EqualIdsOfTwoTablesAreCountedApart) {
  SlidingHashFilter shared(10'000, 7, Thresholds(0));
  TableFilter user(&shared, "user", 2);
  TableFilter movie(&shared, "movie", 3);
  for (std::int64_t id = 0; id < 100; ++id) {
    EXPECT_FALSE(user.Admit(id, 1));
    EXPECT_FALSE(user.Admit(id, 1));
    EXPECT_FALSE(movie.Admit(id, 3)) << id;  // Not seen in this table before.
    EXPECT_TRUE(user.Admit(id, 1));
    EXPECT_TRUE(movie.Admit(id, 1));
  }
}

// The bits that would be the slot of an id mean nothing to a table with a threshold of its own.
TEST(TableFilterTest, AnyBitsMayBeInAnId) {
  SlotOccurrenceThresholdConfig config;
  config.slot_occurrence_thresholds = {{7, 9}};
  SlidingHashFilter shared(1000, 7, SlotThresholds(config));
  TableFilter filter(&shared, "user", 1);
  for (const std::int64_t id : {std::int64_t{7} << 48, std::int64_t{-1}, INT64_MIN, INT64_MAX}) {
    EXPECT_EQ(FirstAdmitted(&filter, id), 2);
  }
}

TEST(TableFilterTest, KeysAreDistinctWithinAndBetweenTables) {
  SlidingHashFilter shared(300, 7, Thresholds(0));
  std::set<std::int64_t> keys;
  std::size_t expected = 0;
  for (const char* table : {"", "user", "movie", "user_1", "user_2"}) {
    const TableFilter filter(&shared, table, 1);
    for (std::int64_t id = -1000; id < 1000; ++id, ++expected) keys.insert(filter.Key(id));
  }
  EXPECT_EQ(keys.size(), expected);
}

// Saved counts are under these keys, so they must not change: a key is the hash of the id's hash
// and the name's, and hashes of ids can be undone.
TEST(TableFilterTest, AKeyDependsOnTheIdAndTheNameAlone) {
  SlidingHashFilter shared(300, 7, Thresholds(0));
  const TableFilter filter(&shared, "foobar", 1);
  const auto inner =
      static_cast<std::uint64_t>(IdOfHash(static_cast<std::uint64_t>(filter.Key(7))));
  EXPECT_EQ(inner ^ 0x85944171F73967E8ull, HashId(7));  // FNV-1a of "foobar", as published.
}

TEST(TableFilterTest, CountsAreFoundAgainInARestoredFilter) {
  SlidingHashFilter saved(1000, 7, Thresholds(0));
  TableFilter before(&saved, "user", 3);
  EXPECT_FALSE(before.Admit(7, 2));
  SlidingHashFilter shared(1000, 7, Thresholds(0));
  {
    const SlidingHashFilter::Snapshot snapshot(&saved);
    SlidingHashFilter::Restoration restoration(&shared);
    for (std::size_t split = 0; split < saved.split_num(); ++split) {
      std::vector<std::string> records;
      snapshot.Write(split, [&](std::string_view record) { records.emplace_back(record); });
      std::size_t next = 0;
      restoration.Read(split, [&](std::string_view* record) {
        if (next == records.size()) return false;
        *record = records[next++];
        return true;
      });
    }
    restoration.Commit();
  }
  TableFilter after(&shared, "user", 3);
  EXPECT_FALSE(after.Admit(7, 1));  // The third.
  EXPECT_TRUE(after.Admit(7, 1));
}

TEST(TableFilterTest, LotsAreDrawnWithTheTablesThreshold) {
  std::uint32_t draw = 0;
  ProbabilisticFilter shared(Thresholds(0), /*equal_probability=*/false, [&draw] { return draw; });
  TableFilter filter(&shared, "user", 4);
  draw = (1u << 30) - 1;  // Just below a quarter.
  EXPECT_TRUE(filter.Admit(1, 1));
  draw = 1u << 30;
  EXPECT_FALSE(filter.Admit(1, 1));
  EXPECT_TRUE(shared.Admit(1, 1));
}

TEST(SharedFilterTest, SaysWhichThresholdsItKeepsTo) {
  EXPECT_EQ(DummyFilter().max_threshold(), 0u);
  EXPECT_EQ(SlidingHashFilter(300, 7, Thresholds(0)).max_threshold(), 15u);
  EXPECT_EQ(ProbabilisticFilter(Thresholds(0), true).max_threshold(), 0xFFFFFFFFu);
  EXPECT_TRUE(DummyFilter().AdmitFrom(0, 7, 1));
}

}  // namespace
}  // namespace monolith::core
