// What threads may do to a table at the same time. Run under ThreadSanitizer with `make test-tsan`.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <random>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "core/table/embedding_table.h"
#include "core/testing/tables.h"

namespace monolith::core {
namespace {

using testing::AdagradTable;
using testing::AssignAll;
using testing::At;
using testing::DumpAll;
using testing::DumpPlaces;
using testing::LookupAll;
using testing::LookupOne;
using testing::OnThreads;
using testing::ParseRecord;
using testing::Range;
using testing::RestoreAll;
using testing::RunThreads;
using testing::SgdTable;
using Ids = std::vector<std::int64_t>;
using Floats = std::vector<float>;

constexpr std::int64_t kDay = 86'400;

#if defined(MONOLITH_SANITIZED)
constexpr int kScale = 20;  // Everything takes many times as long.
#else
constexpr int kScale = 1;
#endif

// True if all of the row's floats are equal, as the writers of these tests leave them.
bool IsWhole(const float* row, std::size_t dim) {
  return std::all_of(row, row + dim, [&](float value) { return value == row[0]; });
}

bool IsWhole(const std::string& record, std::size_t dim) {
  Floats values(dim);
  const EntryDumpView view = ParseRecord(record);
  if (view.num.size() != dim) return false;
  view.num.CopyTo(values.data());
  return IsWhole(values.data(), dim);
}

TEST(EmbeddingTableConcurrencyTest, HundredThreadsAddAndOptimize) {
  EmbeddingTable table(SgdTable(1));
  RunThreads(100, [&](int thread) {
    const std::int64_t id = thread;
    const auto update = static_cast<float>(thread);
    const float grad = -200.0f * update;
    const float rate = 0.01f;
    table.AssignAdd(&id, 1, &update, {});
    table.Optimize(&id, 1, &grad, &rate, 1, {});
  });
  EXPECT_EQ(table.size(), 100u);
  // i + 0.01 * 200 * i.
  for (int i = 0; i < 100; ++i) EXPECT_FLOAT_EQ(LookupOne(table, i), 3.0f * static_cast<float>(i));
}

TEST(EmbeddingTableConcurrencyTest, TenThreadsSaveAndRestore2600IdsEach) {
  constexpr int kThreads = 10;
  constexpr std::int64_t kIdsEach = 2600;
  EmbeddingTable table(AdagradTable(2));
  RunThreads(kThreads, [&](int thread) {
    const Ids ids = Range(thread * kIdsEach, (thread + 1) * kIdsEach);
    AssignAll(table, ids, static_cast<float>(thread), At(thread));
  });
  ASSERT_EQ(table.size(), static_cast<std::size_t>(kThreads) * kIdsEach);

  std::vector<std::vector<std::string>> shards(kThreads);
  const std::uint64_t end = table.num_places();
  RunThreads(kThreads, [&](int shard) {
    const auto s = static_cast<std::uint64_t>(shard);
    shards[shard] = DumpPlaces(table, end * s / kThreads, end * (s + 1) / kThreads, 100);
  });
  EmbeddingTable restored(AdagradTable(2));
  RunThreads(kThreads, [&](int shard) { RestoreAll(restored, shards[shard]); });
  EXPECT_EQ(restored.size(), table.size());
  EXPECT_EQ(restored.max_update_sec(), kThreads - 1);
  const Ids ids = Range(0, kThreads * kIdsEach);
  EXPECT_EQ(LookupAll(restored, ids), LookupAll(table, ids));
}

// No lost update, no torn row: eight threads count up on overlapping ids, two of them very hot,
// while the table grows from nothing to tens of thousands of rows; two more read all the time.
TEST(EmbeddingTableConcurrencyTest, NoIncrementIsLostAndNoReaderSeesATornRow) {
  constexpr int kWriters = 8;
  constexpr int kReaders = 2;
  constexpr int kIncrementsEach = 1'000'000 / kScale;
  constexpr int kBatch = 500;
  constexpr std::size_t kDim = 8;
  constexpr std::int64_t kRange = 200'000 / kScale;
  EmbeddingTable table(SgdTable(kDim));

  const auto id_at = [](std::mt19937_64& random) {
    const std::uint64_t draw = random();
    if (draw % 10 == 0) return static_cast<std::int64_t>(draw >> 8 & 1) - 1;  // -1 or 0.
    return static_cast<std::int64_t>((draw >> 8) % kRange) * 1'000'003;
  };
  std::atomic<int> writers_left{kWriters};
  std::atomic<int> torn{0};
  std::atomic<std::int64_t> rows_read{0};
  RunThreads(kWriters + kReaders, [&](int thread) {
    std::mt19937_64 random(static_cast<std::uint64_t>(thread));
    Ids ids(kBatch);
    if (thread < kWriters) {
      // Half of the writers add 1, half take a step that adds 1. Both are exact below 2^24.
      const Floats ones(kBatch * kDim, 1.0f);
      const Floats minus_ones(kBatch * kDim, -1.0f);
      const float rate = 1.0f;
      for (int done = 0; done < kIncrementsEach; done += kBatch) {
        for (auto& id : ids) id = id_at(random);
        if (thread % 2 == 0) {
          table.AssignAdd(ids.data(), kBatch, ones.data(), {});
        } else {
          table.Optimize(ids.data(), kBatch, minus_ones.data(), &rate, 1, {});
        }
      }
      --writers_left;
      return;
    }
    Floats rows(kBatch * kDim);
    std::unordered_map<std::int64_t, float> seen;
    while (writers_left > 0) {
      for (auto& id : ids) id = id_at(random);
      table.Lookup(ids.data(), kBatch, rows.data());
      for (std::size_t i = 0; i < kBatch; ++i) {
        const float* row = rows.data() + i * kDim;
        if (!IsWhole(row, kDim)) ++torn;
        if (ids[i] > 0) continue;
        // What a reader has seen does not go back.
        float& last = seen[ids[i]];
        if (row[0] < last) ++torn;
        last = row[0];
      }
      rows_read += kBatch;
    }
  });
  EXPECT_EQ(torn, 0);
  EXPECT_GT(rows_read, 0);

  // The same draws, counted in a map.
  std::unordered_map<std::int64_t, float> expected;
  for (int thread = 0; thread < kWriters; ++thread) {
    std::mt19937_64 random(static_cast<std::uint64_t>(thread));
    for (int i = 0; i < kIncrementsEach; ++i) ++expected[id_at(random)];
  }
  EXPECT_EQ(table.size(), expected.size());
  for (const auto& [id, count] : expected) {
    const Floats row = LookupAll(table, {id});
    ASSERT_TRUE(IsWhole(row.data(), kDim));
    ASSERT_EQ(row[0], count) << "id " << id;
  }
}

TEST(EmbeddingTableConcurrencyTest, ParallelCallsFromSeveralThreadsLoseNothing) {
  EmbeddingTable table(SgdTable(4));
  const Parallel parallel = OnThreads(3);
  constexpr int kCalls = 20;
  const Ids ids = Range(0, 20'000 / kScale);
  RunThreads(3, [&](int) {
    WriteOptions options;
    options.parallel = &parallel;
    const Floats ones(ids.size() * 4, 1.0f);
    Floats rows(ones.size());
    for (int call = 0; call < kCalls; ++call) {
      table.AssignAdd(ids.data(), ids.size(), ones.data(), options);
      EXPECT_EQ(table.Lookup(ids.data(), ids.size(), rows.data(), &parallel), ids.size());
    }
  });
  EXPECT_EQ(LookupAll(table, ids), Floats(ids.size() * 4, 3.0f * kCalls));
}

TEST(EmbeddingTableConcurrencyTest, ADumpSeesEveryRowThatStaysExactlyOnce) {
  constexpr std::size_t kDim = 4;
  const std::int64_t staying = 30'000 / kScale;
  EmbeddingTable table(SgdTable(kDim));
  const Ids stay = Range(0, staying);
  AssignAll(table, stay, 1.0f);
  std::atomic<bool> done{false};
  std::vector<std::thread> writers;
  // One updates the rows that stay, two let others come and go.
  writers.emplace_back([&] {
    for (float value = 2; !done; ++value) AssignAll(table, stay, value);
  });
  for (int w = 1; w <= 2; ++w) {
    writers.emplace_back([&, w] {
      std::mt19937_64 random(static_cast<std::uint64_t>(w));
      while (!done) {
        Ids ids(1 + random() % 2000);
        for (auto& id : ids) id = staying + static_cast<std::int64_t>(random() % 20'000);
        if (random() % 2 == 0) {
          AssignAll(table, ids, static_cast<float>(w));
        } else {
          table.Erase(ids.data(), ids.size());
        }
      }
    });
  }
  for (int dump = 0; dump < 10; ++dump) {
    std::vector<int> times(static_cast<std::size_t>(staying));
    const std::size_t at_once = dump % 2 == 0 ? 10 : 1000;
    for (const std::string& record : DumpPlaces(table, 0, table.num_places(), at_once)) {
      ASSERT_TRUE(IsWhole(record, kDim));
      const std::int64_t id = ParseRecord(record).id;
      if (id < staying) ++times[static_cast<std::size_t>(id)];
    }
    EXPECT_EQ(std::count(times.begin(), times.end(), 1), staying);
  }
  done = true;
  for (std::thread& writer : writers) writer.join();
}

TEST(EmbeddingTableConcurrencyTest, InsertsDuringEvictionAreSafe) {
  EmbeddingHashTableConfig config = SgdTable(2);
  config.slot_expire_time_config.default_expire_time = 5;
  EmbeddingTable table(config);
  constexpr std::int64_t kNow = 10 * kDay;
  constexpr int kThreads = 3;
  const std::int64_t ids_each = 40'000 / kScale;
  std::atomic<int> writers_left{kThreads};
  std::atomic<std::size_t> evicted{0};
  RunThreads(kThreads + 1, [&](int thread) {
    if (thread == kThreads) {
      while (writers_left > 0) evicted += table.Evict(kNow);
      return;
    }
    // Even ids are fresh, odd ones already expired when they come.
    const std::int64_t first = thread * ids_each;
    for (std::int64_t at = first; at < first + ids_each; at += 100) {
      for (std::int64_t odd = 0; odd < 2; ++odd) {
        Ids ids;
        for (std::int64_t id = at + odd; id < at + 100; id += 2) ids.push_back(id);
        AssignAll(table, ids, static_cast<float>(thread + 1), At(odd == 0 ? kNow : 0));
      }
    }
    --writers_left;
  });
  evicted += table.Evict(kNow);
  const std::int64_t all = kThreads * ids_each;
  EXPECT_EQ(evicted, static_cast<std::size_t>(all / 2));
  EXPECT_EQ(table.size(), static_cast<std::size_t>(all / 2));
  for (std::int64_t id = 0; id < all; ++id) {
    const float expected = id % 2 == 0 ? static_cast<float>(id / ids_each + 1) : 0.0f;
    ASSERT_EQ(LookupAll(table, {id}), Floats(2, expected)) << id;
  }
  EXPECT_EQ(DumpAll(table).size(), table.size());
}

TEST(EmbeddingTableConcurrencyTest, EverythingAtOnceKeepsRowsWhole) {
  constexpr std::size_t kDim = 6;
  EmbeddingHashTableConfig config = SgdTable(kDim);
  config.slot_expire_time_config.default_expire_time = 1;
  EmbeddingTable table(config);
  std::atomic<int> torn{0};
  const int calls = 2000 / kScale;
  RunThreads(6, [&](int thread) {
    std::mt19937_64 random(static_cast<std::uint64_t>(thread));
    Floats rows;
    std::vector<std::int32_t> status;
    std::vector<std::string> entries;
    for (int call = 0; call < calls; ++call) {
      Ids ids(1 + random() % 300);
      for (auto& id : ids) id = static_cast<std::int64_t>(random() % 5000);
      const auto now = static_cast<std::int64_t>(random() % (3 * kDay));
      switch (random() % 9) {
        case 0:
          table.Erase(ids.data(), ids.size());
          break;
        case 1:
          if (random() % 10 == 0) table.Clear();
          break;
        case 2:
          table.Evict(now);
          break;
        case 3:
          for (const std::string& record : DumpAll(table)) torn += IsWhole(record, kDim) ? 0 : 1;
          break;
        case 4:
          status.resize(ids.size());
          table.Reinitialize(ids.data(), ids.size(), now, status.data());
          break;
        case 5:
          entries.resize(ids.size());
          table.LookupEntry(ids.data(), ids.size(), entries.data());
          for (const std::string& entry : entries) {
            torn += entry.empty() || IsWhole(entry, kDim) ? 0 : 1;
          }
          break;
        case 6:
          RestoreAll(table, DumpPlaces(table, 0, table.num_places() / 10));
          (void)table.size();
          (void)table.MemoryBytes();
          (void)table.DebugString();
          break;
        case 7:
          rows = LookupAll(table, ids);
          for (std::size_t i = 0; i < ids.size(); ++i) {
            torn += IsWhole(rows.data() + i * kDim, kDim) ? 0 : 1;
          }
          break;
        default:
          AssignAll(table, ids, static_cast<float>(call), At(now));
      }
    }
  });
  EXPECT_EQ(torn, 0);
  EXPECT_EQ(DumpAll(table).size(), table.size());
  for (const std::string& record : DumpAll(table)) {
    EXPECT_TRUE(table.Contains(ParseRecord(record).id));
  }
}

// Small lookups lock all stripes at once; with enough threads there is always one inside. An update
// has to get its turn all the same.
TEST(EmbeddingTableConcurrencyTest, LookupsDoNotStarveUpdates) {
  EmbeddingTable table(SgdTable(16));
  const Ids ids = Range(0, 10'000);
  AssignAll(table, ids, 1.0f);
  std::atomic<bool> done{false};
  std::atomic<std::int64_t> lookups{0};
  std::vector<std::thread> readers;
  for (int i = 0; i < 8; ++i) {
    readers.emplace_back([&, i] {
      std::mt19937 random(static_cast<unsigned>(i));
      Floats rows(64 * 16);
      while (!done) {
        table.Lookup(ids.data() + random() % (ids.size() - 64), 64, rows.data());
        ++lookups;
      }
    });
  }
  while (lookups < 1000) std::this_thread::yield();
  const auto start = std::chrono::steady_clock::now();
  int updates = 0;
  // A turn each takes milliseconds where there are more threads than cores; starved, the updates
  // take several seconds each.
  const int wanted = 100 / kScale;
  while (updates < wanted && std::chrono::steady_clock::now() - start < std::chrono::seconds(60)) {
    AssignAll(table, Range(updates * 64, (updates + 1) * 64), 2.0f);
    ++updates;
  }
  done = true;
  for (std::thread& reader : readers) reader.join();
  EXPECT_EQ(updates, wanted);
}

// Two threads restore into a table, each its part, while others look up and update.
TEST(EmbeddingTableConcurrencyTest, RowsAreWholeWhileATableIsRestoredInPlace) {
  constexpr std::size_t kDim = 8;
  constexpr std::int64_t kIds = 200'000 / kScale;
  EmbeddingTable source(SgdTable(kDim)), table(SgdTable(kDim));
  AssignAll(source, Range(kIds / 2, kIds * 3 / 2), 2.0f);
  AssignAll(table, Range(0, kIds), 1.0f);
  const std::uint64_t end = source.num_places();
  const std::vector<std::string> parts[] = {DumpPlaces(source, 0, end / 2),
                                            DumpPlaces(source, end / 2, end)};
  std::atomic<bool> done{false};
  std::atomic<std::int64_t> not_whole{0}, lost{0};
  std::vector<std::thread> others;
  others.emplace_back([&] {
    const Ids both = Range(kIds / 2, kIds / 2 + 1000);
    while (!done) {
      const Floats rows = LookupAll(table, both);
      for (std::size_t i = 0; i < both.size(); ++i) {
        not_whole += IsWhole(rows.data() + i * kDim, kDim) ? 0 : 1;
        lost += rows[i * kDim] == 0.0f ? 1 : 0;
      }
    }
  });
  others.emplace_back([&] {
    while (!done) AssignAll(table, Range(kIds / 2, kIds / 2 + 100), 1.0f);
  });
  const std::uint32_t mark = table.NewMark();
  RunThreads(2, [&](int part) {
    std::vector<EntryDumpView> views;
    for (const std::string& record : parts[part]) views.push_back(ParseRecord(record));
    table.Mark(views.data(), views.size(), mark);
  });
  table.EraseUnmarked(mark);
  RunThreads(2, [&](int part) { RestoreAll(table, parts[part]); });
  done = true;
  for (std::thread& thread : others) thread.join();
  EXPECT_EQ(not_whole, 0);
  EXPECT_EQ(lost, 0);
  EXPECT_EQ(table.size(), source.size());
  const Ids unwritten = Range(kIds / 2 + 100, kIds * 3 / 2);
  EXPECT_EQ(LookupAll(table, unwritten), LookupAll(source, unwritten));
}

}  // namespace
}  // namespace monolith::core
