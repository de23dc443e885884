// What a table saves, and what it makes of what it is given to restore.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/table/embedding_table.h"
#include "core/testing/bytes.h"
#include "core/testing/tables.h"

namespace monolith::core {
namespace {

using testing::AdagradTable;
using testing::AllOptimizers;
using testing::AssignAll;
using testing::At;
using testing::DumpAll;
using testing::DumpPlaces;
using testing::InitialConstant;
using testing::LookupAll;
using testing::LookupEntry;
using testing::LookupOne;
using testing::NamedOptimizer;
using testing::Range;
using testing::RestoreAll;
using testing::SgdTable;
using testing::SortedDump;
using testing::Step;
using testing::TrainingSegment;
using testing::TrainingTable;
using testing::Wrap;
using Ids = std::vector<std::int64_t>;
using Floats = std::vector<float>;

class EmbeddingTableRoundTripTest : public ::testing::TestWithParam<NamedOptimizer> {};

INSTANTIATE_TEST_SUITE_P(Optimizers, EmbeddingTableRoundTripTest,
                         ::testing::ValuesIn(AllOptimizers()),
                         [](const auto& info) { return info.param.name; });

TEST_P(EmbeddingTableRoundTripTest, RestoredTableTakesTheSameNextStep) {
  const auto config =
      TrainingTable({TrainingSegment(GetParam().config, GetParam().dim, InitialConstant(0.25f))});
  EmbeddingTable table(config);
  std::mt19937 random(4);
  const Ids ids = Range(-500, 500);
  Floats grads(ids.size() * table.dim());
  const float rate = 0.05f;
  for (std::int64_t step = 1; step <= 3; ++step) {
    for (auto& grad : grads) grad = static_cast<float>(random() % 2000) / 1000.0f - 1.0f;
    table.Optimize(ids.data(), ids.size(), grads.data(), &rate, step, At(100 + step));
  }
  const std::vector<std::string> saved = SortedDump(table);
  ASSERT_EQ(saved.size(), ids.size());
  EmbeddingTable restored(config);
  AssignAll(restored, Range(0, 10), 77.0f);  // Restoring overwrites rows that are there.
  RestoreAll(restored, saved);
  EXPECT_EQ(restored.size(), table.size());
  EXPECT_EQ(SortedDump(restored), saved);
  EXPECT_EQ(LookupAll(restored, ids), LookupAll(table, ids));
  EXPECT_EQ(restored.max_update_sec(), table.max_update_sec());

  table.Optimize(ids.data(), ids.size(), grads.data(), &rate, 4, At(200));
  restored.Optimize(ids.data(), ids.size(), grads.data(), &rate, 4, At(200));
  const std::vector<std::string> next = SortedDump(table);
  EXPECT_NE(next, saved);
  EXPECT_EQ(SortedDump(restored), next);
}

TEST_P(EmbeddingTableRoundTripTest, ValuesAreTakenFromATableWithAnotherOptimizer) {
  EmbeddingTable table(SgdTable(GetParam().dim));
  const Ids ids = Range(-5, 5);
  AssignAll(table, ids, 3.0f);
  const std::vector<std::string> saved = DumpAll(table);
  std::vector<EntryDumpView> views(saved.size());
  for (std::size_t i = 0; i < saved.size(); ++i) ASSERT_TRUE(ParseEntryDump(saved[i], &views[i]));

  const auto config = TrainingTable({TrainingSegment(GetParam().config, GetParam().dim)});
  EmbeddingTable restored(config), expected(config);
  restored.Restore(views.data(), views.size(), EmbeddingTable::kAnyTime, /*values_only=*/true);
  AssignAll(expected, ids, 3.0f);
  EXPECT_EQ(SortedDump(restored), SortedDump(expected));
  EXPECT_EQ(restored.max_update_sec(), table.max_update_sec());

  EmbeddingTable wider(SgdTable(GetParam().dim + 1));
  EXPECT_THROW(wider.Restore(views.data(), views.size(), EmbeddingTable::kAnyTime, true),
               std::invalid_argument);
}

TEST(EmbeddingTableDumpTest, AReservedTableTakesTheSameRowsInNoMoreMemory) {
  // At which size a segment grows is spread, so the two are alike only over several sizes.
  std::size_t grown_bytes = 0, reserved_bytes = 0;
  for (const std::int64_t rows : {0, 1, 1000, 50000, 100000, 200000}) {
    EmbeddingTable grown(SgdTable(1));
    EmbeddingTable reserved(SgdTable(1));
    reserved.Reserve(static_cast<std::size_t>(rows));
    AssignAll(grown, Range(0, rows), 1.0f);
    AssignAll(reserved, Range(0, rows), 1.0f);
    EXPECT_EQ(SortedDump(reserved), SortedDump(grown));
    grown_bytes += grown.MemoryBytes();
    reserved_bytes += reserved.MemoryBytes();
    if (rows < 1000) continue;  // Below, some stripes are empty.
    const std::size_t bytes = reserved.MemoryBytes();
    reserved.Reserve(1 << 20);  // Not empty: stays as it is.
    EXPECT_EQ(reserved.size(), static_cast<std::size_t>(rows));
    EXPECT_EQ(reserved.MemoryBytes(), bytes);
  }
  EXPECT_LE(reserved_bytes, grown_bytes * 21 / 20);
}

TEST(EmbeddingTableDumpTest, PiecesOfAnySizeGiveAllRowsOnce) {
  EmbeddingTable table(SgdTable(1));
  AssignAll(table, Range(0, 3000), 1.0f);
  const Ids gone = Range(1000, 1100);
  table.Erase(gone.data(), gone.size());
  const std::vector<std::string> all = SortedDump(table);
  EXPECT_EQ(all.size(), 2900u);
  for (const std::size_t at_once : {1u, 7u, 16u, 100u, 100'000u}) {
    for (const std::uint64_t pieces : {1u, 2u, 3u, 10u, 1000u}) {
      std::vector<std::string> records;
      const std::uint64_t end = table.num_places();
      for (std::uint64_t piece = 0; piece < pieces; ++piece) {
        for (auto& record :
             DumpPlaces(table, end * piece / pieces, end * (piece + 1) / pieces, at_once)) {
          records.push_back(std::move(record));
        }
      }
      std::sort(records.begin(), records.end());
      ASSERT_EQ(records, all) << pieces << " pieces, " << at_once << " at once";
    }
  }
}

TEST(EmbeddingTableDumpTest, PlacesBeyondTheEndAreEmpty) {
  EmbeddingTable table(SgdTable(1));
  AssignAll(table, {1}, 1.0f);
  DumpedRows dumped;
  const std::uint64_t end = table.num_places() + 1000;
  EXPECT_LE(table.Dump(0, end, 10, nullptr, &dumped), end);
  EXPECT_EQ(dumped.size(), 1u);
  EXPECT_GE(table.Dump(table.num_places(), end, 10, nullptr, &dumped), table.num_places());
  EXPECT_EQ(dumped.size(), 1u);
  EXPECT_EQ(table.Dump(0, end, 0, nullptr, &dumped), 0u);
  EXPECT_EQ(dumped.size(), 1u);
}

TEST(EmbeddingTableDumpTest, ADumpThatDoesNotFitLeavesNoHalfRow) {
  EmbeddingTable adagrad(AdagradTable(2));
  Step(adagrad, {1, 2, 3}, 1.0f, 0.1f, 1, At(500));
  const std::vector<std::string> records = DumpAll(adagrad);

  const EmbeddingHashTableConfig misfits[] = {
      AdagradTable(3),  // Another dim,
      SgdTable(2),      // another optimizer,
      TrainingTable({TrainingSegment(Wrap(AdagradConfig()), 1),
                     TrainingSegment(Wrap(AdagradConfig()), 1)}),  // other segments.
  };
  for (const EmbeddingHashTableConfig& config : misfits) {
    EmbeddingTable table(config);
    AssignAll(table, {1, 10}, 4.0f, At(7));
    const std::string old_row = LookupEntry(table, 1);
    const std::string other_row = LookupEntry(table, 10);
    EXPECT_THROW(RestoreAll(table, records), std::invalid_argument);
    // Whole or not there at all.
    EXPECT_TRUE(LookupEntry(table, 1) == old_row || LookupEntry(table, 1).empty());
    EXPECT_EQ(LookupEntry(table, 2), "");
    EXPECT_EQ(LookupEntry(table, 3), "");
    EXPECT_EQ(LookupEntry(table, 10), other_row);
    EXPECT_LE(table.size(), 2u);
    EXPECT_EQ(DumpAll(table).size(), table.size());
    // The table is as usable as before, the places of failed rows included.
    AssignAll(table, Range(0, 100), 1.0f);
    EXPECT_EQ(table.size(), 100u);
    EXPECT_EQ(LookupOne(table, 2), 1.0f);
  }
}

TEST(EmbeddingTableDumpTest, DamagedOptimizerStatesLeaveNoHalfRow) {
  EmbeddingTable source(AdagradTable(2));
  Step(source, {1}, 1.0f, 0.1f, 1, At(500));
  const std::string record = DumpAll(source)[0];
  EmbeddingTable table(AdagradTable(2));
  int restored = 0;
  int refused = 0;
  testing::ForEachDamage(record, 500, [&](std::string_view damaged) {
    EntryDumpView view;
    if (!ParseEntryDump(damaged, &view)) return;
    table.Clear();
    try {
      table.Restore(&view, 1);
      ++restored;
      EXPECT_EQ(table.size(), 1u);
      EXPECT_TRUE(table.Contains(view.id));
      EXPECT_NE(LookupEntry(table, view.id), "");
    } catch (const std::invalid_argument&) {
      ++refused;
      EXPECT_EQ(table.size(), 0u);
      EXPECT_TRUE(DumpAll(table).empty());
    }
  });
  EXPECT_GT(restored, 0);  // A flipped bit of a float is still a float.
  EXPECT_GT(refused, 0);
}

TEST(EmbeddingTableDumpTest, ARowWithoutIdIsRefusedBeforeAnythingIsRestored) {
  EmbeddingTable source(SgdTable(1));
  AssignAll(source, {1}, 1.0f);
  const std::string with_id = DumpAll(source)[0];
  const std::string without_id = LookupEntry(source, 1);
  EmbeddingTable table(SgdTable(1));
  EXPECT_THROW(RestoreAll(table, {with_id, without_id}), std::invalid_argument);
  EXPECT_EQ(table.size(), 0u);
}

TEST(EmbeddingTableDumpTest, RowsOfIdsAreTheRecordsOfAWholeDump) {
  EmbeddingTable table(AdagradTable(2));
  Step(table, Range(-300, 3000), 0.5f, 0.1f, 1, At(500));
  const std::vector<std::string> all = SortedDump(table);
  DumpedRows dumped;
  const Ids ids = Range(-300, 3000);
  table.DumpIds(ids.data(), ids.size(), nullptr, &dumped);
  std::vector<std::string> records;
  for (std::size_t i = 0; i < dumped.size(); ++i) records.emplace_back(dumped[i]);
  std::sort(records.begin(), records.end());
  EXPECT_EQ(records, all);
}

TEST(EmbeddingTableDumpTest, IdsWithoutARowAreDumpedAsRemoved) {
  EmbeddingHashTableConfig config = SgdTable(1);
  config.slot_expire_time_config.default_expire_time = 1;
  EmbeddingTable table(config);
  constexpr std::int64_t kDaySec = 24 * 60 * 60;
  AssignAll(table, {1, 2}, 1.0f, At(1000));
  AssignAll(table, {3}, 1.0f, At(1000 + kDaySec));
  const SlotExpireTimes times(config.slot_expire_time_config);
  const Expiry expiry{&times, 1000 + kDaySec};
  DumpedRows dumped;
  const Ids ids = {1, 3, 7};
  table.DumpIds(ids.data(), ids.size(), &expiry, &dumped);
  ASSERT_EQ(dumped.size(), 3u);
  std::vector<std::pair<std::int64_t, bool>> found;
  for (std::size_t i = 0; i < dumped.size(); ++i) {
    EntryDumpView view;
    ASSERT_TRUE(ParseEntryDump(dumped[i], &view));
    found.emplace_back(view.id, IsRemovedEntry(view));
  }
  std::sort(found.begin(), found.end());
  const std::vector<std::pair<std::int64_t, bool>> expected = {{1, true}, {3, false}, {7, true}};
  EXPECT_EQ(found, expected);

  Ids evicted;
  EXPECT_EQ(table.Evict(1000 + kDaySec, &evicted), 2u);
  std::sort(evicted.begin(), evicted.end());
  EXPECT_EQ(evicted, (Ids{1, 2}));
}

TEST(EmbeddingTableDumpTest, RestoringAnIdTwiceKeepsTheLast) {
  EmbeddingTable first(SgdTable(1));
  EmbeddingTable second(SgdTable(1));
  AssignAll(first, {1}, 1.0f, At(10));
  AssignAll(second, {1}, 2.0f, At(5));
  EmbeddingTable table(SgdTable(1));
  RestoreAll(table, {DumpAll(first)[0], DumpAll(second)[0]});
  EXPECT_EQ(table.size(), 1u);
  EXPECT_EQ(LookupOne(table, 1), 2.0f);
  EXPECT_EQ(table.max_update_sec(), 10);
}

void MarkAll(EmbeddingTable& table, const std::vector<std::string>& records, std::uint32_t mark) {
  std::vector<EntryDumpView> views;
  for (const std::string& record : records) views.push_back(testing::ParseRecord(record));
  table.Mark(views.data(), views.size(), mark);
}

TEST(EmbeddingTableMarkTest, ATableBecomesAnotherInItsOwnMemory) {
  EmbeddingTable source(AdagradTable(4)), table(AdagradTable(4));
  Step(source, Range(1000, 3000), 0.5f, 0.1f, 1, At(500));
  Step(table, Range(0, 2000), 0.25f, 0.1f, 1, At(900));
  const std::uint64_t places = table.num_places();
  const std::uint32_t mark = table.NewMark();
  const std::vector<std::string> before = SortedDump(table);
  MarkAll(table, DumpAll(source), mark);
  EXPECT_EQ(SortedDump(table), before);
  EXPECT_EQ(table.EraseUnmarked(mark), 1000u);
  EXPECT_EQ(table.size(), 1000u);
  EXPECT_EQ(LookupEntry(table, 999), "");
  EXPECT_NE(LookupEntry(table, 1000), "");
  EXPECT_EQ(table.max_update_sec(), 0);
  RestoreAll(table, DumpAll(source));
  EXPECT_EQ(SortedDump(table), SortedDump(source));
  EXPECT_EQ(table.max_update_sec(), 500);
  // 1000 places were free, and as many ids are new. They are spread by hash over the 64 stripes: a
  // stripe has 16 +- 4 of each, and takes a block of 16 places where it lacks some.
  EXPECT_LE(table.num_places(), places + 64 * 2 * RowStore::kBlockRows);
  EXPECT_EQ(table.Stats().expired, 0u);
}

TEST(EmbeddingTableMarkTest, MarksOfACheckThatFailedAreForgotten) {
  EmbeddingTable source(SgdTable(2)), table(SgdTable(2));
  AssignAll(source, {1, 2}, 1.0f);
  AssignAll(table, {1, 2, 3}, 3.0f);
  MarkAll(table, DumpAll(source), table.NewMark());  // And no more.
  AssignAll(source, {4}, 4.0f);
  source.Erase(Ids{2}.data(), 1);
  const std::uint32_t mark = table.NewMark();
  MarkAll(table, DumpAll(source), mark);
  EXPECT_EQ(table.EraseUnmarked(mark), 2u);
  EXPECT_EQ(LookupAll(table, {1, 2, 3}), (Floats{3, 3, 0, 0, 0, 0}));
  // A marked row is as any other for all who come.
  AssignAll(table, {1, 2}, 5.0f);
  EXPECT_EQ(table.Erase(Ids{1, 2}.data(), 2), 2u);
  EXPECT_EQ(table.size(), 0u);
}

TEST(EmbeddingTableMarkTest, DumpsThatDoNotFitAreRefusedAndChangeNothing) {
  EmbeddingTable source(AdagradTable(2));
  AssignAll(source, {1, 2}, 1.0f, At(5));
  const std::vector<std::string> records = DumpAll(source);
  for (const EmbeddingHashTableConfig& config : {AdagradTable(3), SgdTable(2)}) {
    EmbeddingTable table(config);
    AssignAll(table, {1, 3}, 2.0f, At(6));
    const std::vector<std::string> before = SortedDump(table);
    EXPECT_THROW(MarkAll(table, records, table.NewMark()), std::invalid_argument);
    EXPECT_EQ(SortedDump(table), before);
    EXPECT_EQ(table.max_update_sec(), 6);
  }
  EmbeddingTable table(AdagradTable(2));
  EXPECT_THROW(MarkAll(table, {LookupEntry(source, 1)}, table.NewMark()), std::invalid_argument);
}

}  // namespace
}  // namespace monolith::core
