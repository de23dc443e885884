// What a table tells about itself.
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "core/table/embedding_table.h"
#include "core/testing/tables.h"

namespace monolith::core {
namespace {

using testing::AssignAll;
using testing::At;
using testing::DumpAll;
using testing::Range;
using testing::RestoreAll;
using testing::RunThreads;
using testing::SgdTable;
using Ids = std::vector<std::int64_t>;

constexpr std::int64_t kDay = 86'400;

// Admits even ids.
class EvenIds final : public AdmissionFilter {
 public:
  bool Admit(std::int64_t id, std::uint32_t) override { return id % 2 == 0; }
};

TEST(TableStatsTest, AnEmptyTable) {
  const EmbeddingTable table(SgdTable(4));
  const TableStats stats = table.Stats();
  EXPECT_EQ(stats.rows, 0u);
  EXPECT_EQ(stats.row_bytes, 0u);
  EXPECT_GT(stats.index_bytes, 0u);
  EXPECT_EQ(stats.memory_bytes(), stats.index_bytes);
  EXPECT_EQ(stats.admitted + stats.expired + stats.held_back, 0u);
}

TEST(TableStatsTest, RowsAreCountedWhenTheyAreMade) {
  for (const bool summed : {false, true}) {
    EmbeddingTable table(SgdTable(1));
    EvenIds filter;
    WriteOptions options;
    options.filter = &filter;
    const Ids ids = {0, 1, 2, 2, 3, 3};
    const std::vector<float> ones(ids.size(), 1.0f);
    const float rate = 1.0f;
    for (int step = 0; step < 2; ++step) {
      const auto optimize = summed ? &EmbeddingTable::OptimizeSummed : &EmbeddingTable::Optimize;
      const std::size_t held_back =
          (table.*optimize)(ids.data(), ids.size(), ones.data(), &rate, 1, options);
      EXPECT_EQ(held_back, summed ? 2u : 3u);
    }
    const TableStats stats = table.Stats();
    EXPECT_EQ(stats.rows, 2u);
    EXPECT_EQ(stats.admitted, 2u);
    // Ids 1 and 3 in both steps; 3 comes twice, which counts once where equal ids are one.
    EXPECT_EQ(stats.held_back, summed ? 4u : 6u);
  }
}

TEST(TableStatsTest, AllWritesMakeRowsAndALookupDoesNot) {
  EmbeddingTable table(SgdTable(1));
  const float one = 1.0f;
  float row = 0.0f;
  std::int32_t status = 0;
  const Ids ids = {1, 2, 3, 4};
  table.Assign(&ids[0], 1, &one, {});
  table.AssignAdd(&ids[1], 1, &one, {});
  table.Reinitialize(&ids[2], 1, 10, &status);
  table.Lookup(&ids[3], 1, &row);
  EXPECT_EQ(table.Stats().admitted, 3u);
  // What is there is not made again, and who is removed by name has not expired.
  table.Reinitialize(ids.data(), 1, 10, &status);
  table.Erase(ids.data(), 2);
  EXPECT_EQ(table.Stats().admitted, 3u);
  EXPECT_EQ(table.Stats().expired, 0u);
  EXPECT_EQ(table.Stats().rows, 1u);
  table.Assign(ids.data(), 2, std::vector<float>(2).data(), {});
  EXPECT_EQ(table.Stats().admitted, 5u);
}

TEST(TableStatsTest, ARestoreAdmitsNobody) {
  EmbeddingTable table(SgdTable(1));
  AssignAll(table, {1, 2, 3}, 1.0f, At(10));
  EmbeddingTable restored(SgdTable(1));
  RestoreAll(restored, DumpAll(table));
  EXPECT_EQ(restored.Stats().rows, 3u);
  EXPECT_EQ(restored.Stats().admitted, 0u);
}

TEST(TableStatsTest, ExpiredRowsAreThoseThatEvictRemoves) {
  EmbeddingHashTableConfig config = SgdTable(1);
  config.slot_expire_time_config.default_expire_time = 3;
  EmbeddingTable table(config);
  AssignAll(table, {1, 2}, 1.0f, At(0));
  AssignAll(table, {3}, 1.0f, At(3 * kDay));
  DumpedRows dumped;
  const Expiry expiry{&table.expire_times(), table.max_update_sec()};
  (void)table.Dump(0, table.num_places(), 100, &expiry, &dumped);
  EXPECT_EQ(dumped.size(), 1u);
  EXPECT_EQ(table.Stats().expired, 0u);  // Left out, but still there.
  table.Evict(3 * kDay);
  EXPECT_EQ(table.Stats().expired, 2u);
  EXPECT_EQ(table.Stats().rows, 1u);
  table.Clear();
  EXPECT_EQ(table.Stats().rows, 0u);
  EXPECT_EQ(table.Stats().expired, 2u);
  EXPECT_EQ(table.Stats().admitted, 3u);
}

TEST(TableStatsTest, MemoryIsThatOfRowsAndIndex) {
  constexpr std::size_t kDim = 8;
  EmbeddingTable table(SgdTable(kDim));
  AssignAll(table, Range(0, 100'000), 1.0f, At(1));
  const TableStats stats = table.Stats();
  EXPECT_EQ(stats.rows, 100'000u);
  // A row is its header and its floats; blocks of 16 rows are handed out to 64 stripes.
  const std::size_t row_bytes = sizeof(RowHeader) + kDim * sizeof(float);
  EXPECT_GE(stats.row_bytes, 100'000 * row_bytes);
  EXPECT_LE(stats.row_bytes, (100'000 + 64 * 16) * row_bytes);
  // At least a number and a tag for each row; at most what a pool takes at a time beside it.
  EXPECT_GE(stats.index_bytes, 100'000u * 5);
  EXPECT_LE(stats.index_bytes, 100'000u * 5 * 4 + (2u << 20));
  EXPECT_EQ(table.MemoryBytes(), stats.row_bytes + stats.index_bytes);
  // Removed rows leave their places for others.
  const Ids ids = Range(0, 50'000);
  table.Erase(ids.data(), ids.size());
  EXPECT_EQ(table.Stats().row_bytes, stats.row_bytes);
  AssignAll(table, Range(0, 50'000), 1.0f, At(1));
  EXPECT_EQ(table.Stats().row_bytes, stats.row_bytes);
}

TEST(TableStatsTest, CountsOfManyThreadsAreExact) {
  EmbeddingTable table(SgdTable(1));
  EvenIds filter;
  WriteOptions options;
  options.filter = &filter;
  constexpr int kThreads = 4;
  constexpr std::int64_t kIds = 20'000;
  RunThreads(kThreads, [&](int thread) {
    // Half of the ids of each thread are those of the next, too.
    const Ids ids = Range(thread * kIds / 2, thread * kIds / 2 + kIds);
    const std::vector<float> ones(ids.size(), 1.0f);
    table.Assign(ids.data(), ids.size(), ones.data(), options);
    (void)table.Stats();
  });
  const TableStats stats = table.Stats();
  const std::int64_t distinct = (kThreads + 1) * kIds / 2;
  EXPECT_EQ(stats.rows, static_cast<std::size_t>(distinct / 2));
  EXPECT_EQ(stats.admitted, stats.rows);
  EXPECT_EQ(stats.held_back, static_cast<std::uint64_t>(kThreads * kIds / 2));
}

}  // namespace
}  // namespace monolith::core
