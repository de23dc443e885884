// Rows that come and go, calls of any size on any number of threads, and what rows cost.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <functional>
#include <map>
#include <new>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/table/embedding_table.h"
#include "core/table/hash.h"
#include "core/table/hash_parts.h"
#include "core/testing/tables.h"

namespace monolith::core {
namespace {

using testing::AdagradTable;
using testing::AssignAll;
using testing::At;
using testing::DumpAll;
using testing::InitialConstant;
using testing::kLongCall;
using testing::LookupAll;
using testing::LookupEntry;
using testing::LookupOne;
using testing::OnThreads;
using testing::ParseRecord;
using testing::Range;
using testing::ServingTable;
using testing::SgdTable;
using testing::SortedDump;
using testing::Step;
using testing::TrainingSegment;
using testing::TrainingTable;
using testing::Wrap;
using Ids = std::vector<std::int64_t>;
using Floats = std::vector<float>;

constexpr std::int64_t kDay = 86'400;

#if defined(MONOLITH_SANITIZED)
constexpr std::int64_t kManyIds = 200'000;
#else
constexpr std::int64_t kManyIds = 1'000'000;
#endif

TEST(EmbeddingTableRowsTest, ReinitializeTellsWhatWasThereAndStartsRowsAfresh) {
  const auto config =
      TrainingTable({TrainingSegment(Wrap(AdagradConfig()), 2, InitialConstant(0.5f))});
  EmbeddingTable table(config);
  Step(table, {1, 2}, 1.0f, 0.1f, 1, At(10));
  const Ids ids = {1, 3, 3};
  std::int32_t status[] = {-1, -1, -1};
  table.Reinitialize(ids.data(), ids.size(), 99, status);
  EXPECT_EQ(status[0], 1);
  EXPECT_EQ(status[1], 0);
  EXPECT_EQ(status[2], 1);  // Made by the one before.
  EXPECT_EQ(LookupAll(table, {1, 3}), Floats(4, 0.5f));
  EXPECT_EQ(ParseRecord(LookupEntry(table, 1)).last_update_ts_sec, 99);
  EXPECT_NE(LookupOne(table, 2), 0.5f);
  // The optimizer's state is fresh, too: a step does what it does to a new row.
  EmbeddingTable fresh(config);
  Step(fresh, {1}, 1.0f, 0.1f, 1, At(100));
  Step(table, {1, 3}, 1.0f, 0.1f, 1, At(100));
  EXPECT_EQ(LookupEntry(table, 1), LookupEntry(fresh, 1));
  EXPECT_EQ(LookupEntry(table, 3), LookupEntry(fresh, 1));
}

TEST(EmbeddingTableRowsTest, ReinitializeAgesNoOtherRow) {
  EmbeddingHashTableConfig config = SgdTable(1);
  config.slot_expire_time_config.default_expire_time = 30;
  EmbeddingTable table(config);
  AssignAll(table, {1, 2, 3}, 1.0f);  // Nobody says when.
  const std::int64_t id = 2;
  std::int32_t status = -1;
  table.Reinitialize(&id, 1, 50'000 * kDay, &status);
  EXPECT_EQ(table.max_update_sec(), 0);
  EXPECT_EQ(table.Evict(table.max_update_sec()), 0u);
}

TEST(EmbeddingTableRowsTest, RestoreRaisesTheNewestTimeAsFarAsItWas) {
  EmbeddingTable table(SgdTable(1));
  AssignAll(table, {1}, 1.0f, At(500));
  AssignAll(table, {2}, 1.0f, At(1000));
  const std::int64_t id = 1;
  std::int32_t status = -1;
  table.Reinitialize(&id, 1, 99'999, &status);
  const std::vector<std::string> records = SortedDump(table);
  std::vector<EntryDumpView> views;
  for (const std::string& record : records) views.push_back(ParseRecord(record));
  for (const auto& [newest, expected] : std::map<std::int64_t, std::int64_t>{
           {table.max_update_sec(), 1000}, {EmbeddingTable::kAnyTime, 99'999}, {0, 0}}) {
    EmbeddingTable restored(SgdTable(1));
    restored.Restore(views.data(), views.size(), newest);
    EXPECT_EQ(restored.max_update_sec(), expected);
    EXPECT_EQ(SortedDump(restored), records);
  }
}

// Throws at one id, as running out of memory would.
class FailsAt final : public AdmissionFilter {
 public:
  explicit FailsAt(std::int64_t id) : id_(id) {}
  bool Admit(std::int64_t id, std::uint32_t) override {
    if (id == id_) throw std::bad_alloc();
    return true;
  }

 private:
  const std::int64_t id_;
};

// So many ids that share a stripe: one thread updates them in the order they are given.
Ids IdsOfOneStripe(std::size_t n) {
  Ids ids;
  for (std::int64_t id = 0; ids.size() < n; ++id) {
    if (StripeOf(HashId(id)) == 5) ids.push_back(id);
  }
  return ids;
}

TEST(EmbeddingTableRowsTest, WhenARowCannotBeMadeThoseBeforeItHaveTakenTheirStep) {
  for (const bool summed : {false, true}) {
    for (const std::size_t fails_at : {0u, 1u, 40u, 64u, 100u}) {
      SCOPED_TRACE(fails_at);
      const Ids ids = IdsOfOneStripe(200);
      EmbeddingTable table(SgdTable(1));
      Ids known = ids;
      known.erase(known.begin() + static_cast<std::ptrdiff_t>(fails_at));
      AssignAll(table, known, 5.0f, At(10));
      FailsAt filter(ids[fails_at]);
      WriteOptions options = At(99);
      options.filter = &filter;
      const Floats grads(ids.size(), 1.0f);
      const float rate = 1.0f;
      const auto optimize = summed ? &EmbeddingTable::OptimizeSummed : &EmbeddingTable::Optimize;
      EXPECT_THROW((table.*optimize)(ids.data(), ids.size(), grads.data(), &rate, 1, options),
                   std::bad_alloc);
      for (std::size_t i = 0; i < ids.size(); ++i) {
        if (i == fails_at) {
          EXPECT_FALSE(table.Contains(ids[i]));
          continue;
        }
        const bool stepped = i < fails_at;
        EXPECT_EQ(LookupOne(table, ids[i]), stepped ? 4.0f : 5.0f) << i;
        EXPECT_EQ(ParseRecord(LookupEntry(table, ids[i])).last_update_ts_sec, stepped ? 99 : 10)
            << i;
      }
    }
  }
}

TEST(EmbeddingTableRowsTest, StepsThatThrowLeaveTheTimeOfTheirRows) {
  EmbeddingTable table(ServingTable(1, /*skip_zero_embedding=*/false));  // Takes no steps.
  AssignAll(table, Range(0, 100), 5.0f, At(10));
  const Ids ids = Range(0, 100);
  const Floats grads(ids.size(), 1.0f);
  const float rate = 1.0f;
  EXPECT_THROW(table.Optimize(ids.data(), ids.size(), grads.data(), &rate, 1, At(99)),
               std::invalid_argument);
  table.Evict(10 + 36'499 * kDay);  // Those of time 10 are not quite old enough.
  EXPECT_EQ(table.size(), 100u);
  EXPECT_EQ(table.Evict(10 + 36'500 * kDay), 100u);
}

TEST(EmbeddingTableRowsTest, ErasesWhatIsThereAndCountsIt) {
  EmbeddingTable table(SgdTable(1));
  AssignAll(table, Range(0, 1000), 1.0f);
  Ids ids = Range(500, 1500);
  ids.push_back(600);  // Twice in one batch.
  EXPECT_EQ(table.Erase(ids.data(), ids.size()), 500u);
  EXPECT_EQ(table.size(), 500u);
  for (std::int64_t id = 0; id < 1500; ++id) EXPECT_EQ(table.Contains(id), id < 500);
}

TEST(EmbeddingTableRowsTest, ErasingAnIdTwiceInABatchIsErasingItOnceWhateverTheId) {
  // Free places are chained by their numbers, which stand where ids stood: ids that look like such
  // a number (the chain's end is 2^32 - 1) must not be taken for a row that is there.
  for (std::int64_t id : Ids{0, 1, 15, 16, 17, 31, 0xFFFFFFFE, 0xFFFFFFFF, 0x100000000, -1}) {
    EmbeddingTable table(SgdTable(1));
    AssignAll(table, {id}, 1.0f);
    const Ids twice = {id, id};
    EXPECT_EQ(table.Erase(twice.data(), 2), 1u) << id;
    EXPECT_EQ(table.size(), 0u) << id;
    AssignAll(table, twice, 2.0f);
    EXPECT_EQ(table.size(), 1u) << id;
    EXPECT_EQ(LookupOne(table, id), 2.0f) << id;
  }
}

TEST(EmbeddingTableRowsTest, PlacesOfErasedAndEvictedRowsAreReusedByFreshRows) {
  EmbeddingHashTableConfig config =
      TrainingTable({TrainingSegment(Wrap(AdagradConfig()), 2, InitialConstant(0.5f))});
  config.slot_expire_time_config.default_expire_time = 1;
  EmbeddingTable table(config);
  const Ids ids = Range(0, 5000);
  const auto expected = [&] {
    EmbeddingTable fresh(config);
    Step(fresh, {0}, 1.0f, 0.1f, 1, At(0));
    return LookupEntry(fresh, 0);
  }();
  Step(table, ids, 1.0f, 0.1f, 1, At(0));
  const std::uint64_t places = table.num_places();
  for (int round = 0; round < 3; ++round) {
    Step(table, ids, 3.0f, 0.1f, 1, At(0));  // So that old state would show.
    if (round % 2 == 0) {
      EXPECT_EQ(table.Evict(kDay), ids.size());
    } else {
      EXPECT_EQ(table.Erase(ids.data(), ids.size()), ids.size());
    }
    EXPECT_EQ(table.size(), 0u);
    EXPECT_TRUE(DumpAll(table).empty());
    Step(table, ids, 1.0f, 0.1f, 1, At(0));
    EXPECT_EQ(table.num_places(), places);
    for (const std::int64_t id : ids) ASSERT_EQ(LookupEntry(table, id), expected);
  }
}

class EmbeddingTableStorageTest : public ::testing::TestWithParam<EntryConfig::Storage> {};

INSTANTIATE_TEST_SUITE_P(Storages, EmbeddingTableStorageTest,
                         ::testing::Values(EntryConfig::Storage::kFloat32,
                                           EntryConfig::Storage::kFloat16,
                                           EntryConfig::Storage::kInt8));

TEST_P(EmbeddingTableStorageTest, AgreesWithAMapUnderRandomCalls) {
  EmbeddingHashTableConfig config = SgdTable(1);
  config.entry_config.storage = GetParam();
  EmbeddingTable table(config);
  // Whole numbers are exact up to 2048 in a float16, and up to 127 in 8 bits.
  const std::uint64_t most = GetParam() == EntryConfig::Storage::kInt8 ? 4 : 100;
  std::map<std::int64_t, float> model;
  std::mt19937_64 random(5);
  for (int call = 0; call < 3000; ++call) {
    // Ids of a small range, so that calls meet; some around the numbers of rows.
    Ids ids(random() % 200);
    for (auto& id : ids) id = static_cast<std::int64_t>(random() % 3000) - 100;
    Floats values(ids.size());
    for (auto& value : values) value = static_cast<float>(random() % most);
    switch (random() % 4) {
      case 0:
        table.Assign(ids.data(), ids.size(), values.data(), {});
        for (std::size_t i = 0; i < ids.size(); ++i) model[ids[i]] = values[i];
        break;
      case 1:
        table.AssignAdd(ids.data(), ids.size(), values.data(), {});
        for (std::size_t i = 0; i < ids.size(); ++i) model[ids[i]] += values[i];
        break;
      case 2: {
        std::size_t erased = 0;
        for (const std::int64_t id : ids) erased += model.erase(id);
        ASSERT_EQ(table.Erase(ids.data(), ids.size()), erased);
        break;
      }
      default: {
        const Floats rows = LookupAll(table, ids);
        for (std::size_t i = 0; i < ids.size(); ++i) {
          const auto found = model.find(ids[i]);
          ASSERT_EQ(rows[i], found == model.end() ? 0.0f : found->second);
        }
      }
    }
    ASSERT_EQ(table.size(), model.size());
  }
  std::map<std::int64_t, float> dumped;
  for (const std::string& record : DumpAll(table)) {
    const EntryDumpView view = ParseRecord(record);
    float value = 0;
    view.num.CopyTo(&value);
    EXPECT_TRUE(dumped.emplace(view.id, value).second) << "twice: " << view.id;
  }
  EXPECT_EQ(dumped, model);
}

// Large calls and several threads in one call.

// Runs the same calls on one thread and on four, and expects the same rows to the bit.
void ExpectParallelEqualsSerial(const EmbeddingHashTableConfig& config, const Ids& ids) {
  EmbeddingTable serial(config);
  EmbeddingTable parallel(config);
  const Parallel on_threads = OnThreads(4);
  std::mt19937 random(9);
  Floats values(ids.size() * serial.dim());
  for (auto& value : values) value = static_cast<float>(random() % 1000) / 128.0f;
  const Floats rates(serial.accessor().num_segments(), 0.1f);
  WriteOptions options = At(123);
  WriteOptions options_on_threads = options;
  options_on_threads.parallel = &on_threads;
  for (auto* table : {&serial, &parallel}) {
    const WriteOptions& how = table == &serial ? options : options_on_threads;
    table->Optimize(ids.data(), ids.size(), values.data(), rates.data(), 1, how);
    table->AssignAdd(ids.data(), ids.size(), values.data(), how);
    table->Optimize(ids.data(), ids.size(), values.data(), rates.data(), 2, how);
  }
  EXPECT_EQ(parallel.size(), serial.size());
  EXPECT_EQ(SortedDump(parallel), SortedDump(serial));
  // Half of the lookups are misses.
  Ids asked = ids;
  for (std::size_t i = 0; i < asked.size(); i += 2) asked[i] = -1'000'000'000 - asked[i];
  Floats expected(values.size(), -1.0f);
  Floats found(values.size(), -2.0f);
  const std::size_t hits = serial.Lookup(asked.data(), asked.size(), expected.data());
  EXPECT_EQ(hits, asked.size() / 2);
  EXPECT_EQ(parallel.Lookup(asked.data(), asked.size(), found.data(), &on_threads), hits);
  EXPECT_EQ(found, expected);
  // Assign, where the last of equal ids wins.
  serial.Assign(ids.data(), ids.size(), values.data(), options);
  parallel.Assign(ids.data(), ids.size(), values.data(), options_on_threads);
  EXPECT_EQ(LookupAll(parallel, ids), LookupAll(serial, ids));
}

TEST(EmbeddingTableBatchTest, ParallelEqualsSerial) {
  std::mt19937_64 random(8);
  for (const std::size_t n : {2u, 50u, 4096u, 20'000u}) {
    SCOPED_TRACE(n);
    Ids ids(n);
    // Ids come several times, some of them very often.
    for (auto& id : ids) {
      id = static_cast<std::int64_t>(random() % 4 == 0 ? random() % 3 : random() % n);
    }
    ExpectParallelEqualsSerial(AdagradTable(5), ids);
  }
}

TEST(EmbeddingTableBatchTest, CallsLongerThanAPieceAreOneCall) {
  const std::size_t n = kLongCall;
  Ids ids(n);
  for (std::size_t i = 0; i < n; ++i) ids[i] = static_cast<std::int64_t>(i * 7919 % 50'021);
  ExpectParallelEqualsSerial(SgdTable(2), ids);

  // Values land at their own positions, and in order.
  EmbeddingTable table(SgdTable(1));
  Floats values(n);
  std::iota(values.begin(), values.end(), 0.0f);
  table.Assign(ids.data(), n, values.data(), {});
  std::unordered_map<std::int64_t, float> last;
  for (std::size_t i = 0; i < n; ++i) last[ids[i]] = values[i];
  const Floats rows = LookupAll(table, ids);
  for (std::size_t i = 0; i < n; ++i) ASSERT_EQ(rows[i], last[ids[i]]);
  EXPECT_EQ(table.size(), last.size());
}

TEST(EmbeddingTableBatchTest, AParallelThatHasNoOtherThreadIsFineToo) {
  EmbeddingTable table(SgdTable(1));
  const Parallel once = [](const std::function<void()>& work) { work(); };
  WriteOptions options;
  options.parallel = &once;
  AssignAll(table, Range(0, 10'000), 1.0f, options);
  EXPECT_EQ(table.size(), 10'000u);
}

// Memory.

std::size_t ResidentBytes() {
  std::size_t total = 0;
  std::size_t resident = 0;
  std::ifstream("/proc/self/statm") >> total >> resident;
  return resident * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

TEST(EmbeddingTableMemoryTest, ARowCostsLittleMoreThanItsOwnBytesAlsoWhileGrowing) {
  constexpr std::size_t kDim = 16;
  constexpr double kRowBytes = 2 * kDim * sizeof(float);  // Values and adagrad's accumulators.
  constexpr std::int64_t kBatch = 4096;
  Ids ids(kBatch);
  const Floats grads(kBatch * kDim, 1.0f);
  const float rate = 0.1f;
  const std::size_t resident_before = ResidentBytes();
  EmbeddingTable table(AdagradTable(kDim));
  double worst = 0;
  for (std::int64_t first = 0; first < kManyIds; first += kBatch) {
    std::iota(ids.begin(), ids.end(), first);
    table.Optimize(ids.data(), ids.size(), grads.data(), &rate, 1, {});
    if (first < 100'000) continue;  // A small table is small anyway.
    const double bytes = static_cast<double>(table.MemoryBytes());
    worst = std::max(worst, bytes / static_cast<double>(table.size()));
  }
  const double rows = static_cast<double>(table.size());
  EXPECT_LT(worst, 1.5 * kRowBytes);
#if defined(MONOLITH_SANITIZED)
  (void)rows, (void)resident_before;
#else
  EXPECT_LT(static_cast<double>(table.MemoryBytes()) / rows, 1.25 * kRowBytes);
  // And that is the truth; huge pages and the allocator may add a little.
  const double resident = static_cast<double>(ResidentBytes() - resident_before);
  EXPECT_LT(resident, 1.03 * static_cast<double>(table.MemoryBytes()) + 6e6);
  EXPECT_GT(resident, 0.9 * static_cast<double>(table.MemoryBytes()));
#endif
}

TEST(EmbeddingTableMemoryTest, AnEmptyTableIsSmall) {
  // Models have hundreds of tables.
  const EmbeddingTable table(AdagradTable(16));
  EXPECT_LT(table.MemoryBytes(), 64u << 10);
}

}  // namespace
}  // namespace monolith::core
