#include "core/embedding_table.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <limits>
#include <map>
#include <mutex>
#include <numeric>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/hash.h"
#include "core/testing/bytes.h"
#include "core/testing/tables.h"

namespace monolith::core {
namespace {

using testing::AdagradTable;
using testing::AllOptimizers;
using testing::AssignAll;
using testing::DumpAll;
using testing::DumpPlaces;
using testing::InitialConstant;
using testing::LookupAll;
using testing::LookupOne;
using testing::NamedOptimizer;
using testing::OnThreads;
using testing::ParseRecord;
using testing::RestoreAll;
using testing::ServingTable;
using testing::SgdTable;
using testing::ToHex;
using testing::TrainingSegment;
using testing::TrainingTable;
using testing::Wrap;
using Ids = std::vector<std::int64_t>;
using Floats = std::vector<float>;

constexpr std::int64_t kDay = 86'400;

#if defined(MONOLITH_SANITIZED)
constexpr std::int64_t kManyIds = 200'000;
constexpr std::size_t kLongCall = (std::size_t{1} << 16) + 77;
#else
constexpr std::int64_t kManyIds = 1'000'000;
// A call that is worked off in several pieces, the last of them short.
constexpr std::size_t kLongCall = (std::size_t{1} << 18) + 77;
#endif

Ids Range(std::int64_t first, std::int64_t last) {
  Ids ids(static_cast<std::size_t>(last - first));
  std::iota(ids.begin(), ids.end(), first);
  return ids;
}

WriteOptions At(std::int64_t update_time_sec) {
  WriteOptions options;
  options.update_time_sec = update_time_sec;
  return options;
}

std::int64_t IdInSlot(std::uint64_t slot, std::uint64_t signature) {
  return static_cast<std::int64_t>(slot << 48 | signature);
}

std::string LookupEntry(const EmbeddingTable& table, std::int64_t id) {
  std::string entry = "not written";
  table.LookupEntry(&id, 1, &entry);
  return entry;
}

void Step(EmbeddingTable& table, const Ids& ids, float grad, float learning_rate,
          std::int64_t global_step = 1, const WriteOptions& options = {}) {
  const Floats grads(ids.size() * table.dim(), grad);
  const Floats rates(table.accessor().num_segments(), learning_rate);
  table.Optimize(ids.data(), ids.size(), grads.data(), rates.data(), global_step, options);
}

std::set<std::string> AsSet(const std::vector<std::string>& records) {
  const std::set<std::string> set(records.begin(), records.end());
  EXPECT_EQ(set.size(), records.size()) << "a row was dumped twice";
  return set;
}

// What the specification's tests ask of a table, for both values of `entry_type`.
class EmbeddingTableTest : public ::testing::TestWithParam<EmbeddingHashTableConfig::EntryType> {
 protected:
  static EmbeddingHashTableConfig Sgd(std::size_t dim) {
    EmbeddingHashTableConfig config = SgdTable(dim);
    config.entry_type = GetParam();
    return config;
  }
};

INSTANTIATE_TEST_SUITE_P(EntryTypes, EmbeddingTableTest,
                         ::testing::Values(EmbeddingHashTableConfig::EntryType::kPacked,
                                           EmbeddingHashTableConfig::EntryType::kRaw),
                         [](const auto& info) {
                           return info.param == EmbeddingHashTableConfig::EntryType::kPacked
                                      ? "Packed"
                                      : "Raw";
                         });

TEST_P(EmbeddingTableTest, ReadsAndWrites) {
  EmbeddingTable table(Sgd(1));
  EXPECT_EQ(table.dim(), 1u);
  EXPECT_EQ(LookupOne(table, -10), 0.0f);
  EXPECT_EQ(table.size(), 0u);

  const std::int64_t id = -10;
  const float update = 2.5f;
  table.AssignAdd(&id, 1, &update, {});
  EXPECT_EQ(LookupOne(table, -10), 2.5f);
  table.AssignAdd(&id, 1, &update, {});
  EXPECT_EQ(LookupOne(table, -10), 5.0f);

  Step(table, {13}, /*grad=*/1.0f, /*learning_rate=*/0.01f);
  EXPECT_FLOAT_EQ(LookupOne(table, 13), -0.01f);

  AssignAll(table, {-10}, 1.0f, At(0));
  // num: 1, opt { dump { sgd {} } }, last_update_ts_sec: 0.
  EXPECT_EQ(ToHex(LookupEntry(table, -10)), "150000803f1a040a0212002000");
  EXPECT_EQ(LookupEntry(table, 12), "");
  EXPECT_EQ(table.size(), 2u);
  EXPECT_TRUE(table.Contains(13));
  EXPECT_FALSE(table.Contains(12));
}

TEST_P(EmbeddingTableTest, LookupGivesZerosForAbsentIdsCountsHitsAndMakesNoRow) {
  EmbeddingTable table(Sgd(3));
  AssignAll(table, {1, 3}, 7.0f);
  const Ids ids = {0, 1, 2, 3, 3, 4};
  Floats rows(ids.size() * 3, -1.0f);
  EXPECT_EQ(table.Lookup(ids.data(), ids.size(), rows.data()), 3u);
  EXPECT_EQ(rows, (Floats{0, 0, 0, 7, 7, 7, 0, 0, 0, 7, 7, 7, 7, 7, 7, 0, 0, 0}));
  EXPECT_EQ(table.size(), 2u);
  EXPECT_EQ(table.Lookup(nullptr, 0, nullptr), 0u);
}

TEST_P(EmbeddingTableTest, AllIdsAreLegal) {
  using Limits = std::numeric_limits<std::int64_t>;
  // The numbers around 2^32 are those of row numbers; 0 and -1 are what other tables reserve.
  const Ids ids = {
      0,          -1,         1,           Limits::min(), Limits::max(),     Limits::min() + 1,
      0xFFFFFFFF, 0xFFFFFFFE, 0x100000000, -0xFFFFFFFFLL, IdInSlot(32767, 5)};
  EmbeddingTable table(Sgd(1));
  for (const std::int64_t id : ids) EXPECT_FALSE(table.Contains(id));
  Floats values(ids.size());
  std::iota(values.begin(), values.end(), 1.0f);
  table.Assign(ids.data(), ids.size(), values.data(), {});
  EXPECT_EQ(table.size(), ids.size());
  EXPECT_EQ(LookupAll(table, ids), values);

  EmbeddingTable restored(Sgd(1));
  RestoreAll(restored, DumpAll(table));
  EXPECT_EQ(LookupAll(restored, ids), values);

  EXPECT_EQ(table.Erase(ids.data(), ids.size()), ids.size());
  EXPECT_EQ(table.size(), 0u);
  EXPECT_EQ(LookupAll(table, ids), Floats(ids.size(), 0.0f));
}

TEST_P(EmbeddingTableTest, DuplicatesInABatchAreProcessedInOrder) {
  EmbeddingTable table(Sgd(1));
  const Ids ids = {7, 7, 8, 7};
  const Floats values = {1, 2, 3, 4};
  table.Assign(ids.data(), ids.size(), values.data(), {});
  EXPECT_EQ(LookupOne(table, 7), 4.0f);  // The last one wins.
  EXPECT_EQ(LookupOne(table, 8), 3.0f);
  EXPECT_EQ(table.size(), 2u);
  table.AssignAdd(ids.data(), ids.size(), values.data(), {});
  EXPECT_EQ(LookupOne(table, 7), 4.0f + 1 + 2 + 4);
  EXPECT_EQ(LookupOne(table, 8), 6.0f);
}

TEST_P(EmbeddingTableTest, ClearRemovesAllAndTheTableGoesOn) {
  EmbeddingTable table(Sgd(2));
  const Ids ids = Range(0, 10'000);
  AssignAll(table, ids, 3.0f);
  EXPECT_EQ(table.size(), 10'000u);
  table.Clear();
  EXPECT_EQ(table.size(), 0u);
  EXPECT_EQ(table.num_places(), 0u);
  EXPECT_TRUE(DumpAll(table).empty());
  EXPECT_EQ(LookupAll(table, ids), Floats(20'000, 0.0f));
  Step(table, ids, 1.0f, 0.5f);  // Rows start from their initial value again.
  EXPECT_EQ(LookupAll(table, ids), Floats(20'000, -0.5f));
}

TEST_P(EmbeddingTableTest, SavesAndRestores) {
  EmbeddingTable table(Sgd(1));
  AssignAll(table, {1}, 1.5f, At(1234));
  AssignAll(table, {-1}, -2.5f, At(5678));
  EmbeddingTable restored(Sgd(1));
  RestoreAll(restored, DumpAll(table));
  EXPECT_EQ(restored.size(), 2u);
  EXPECT_EQ(LookupOne(restored, 1), 1.5f);
  EXPECT_EQ(LookupOne(restored, -1), -2.5f);
  EXPECT_EQ(LookupEntry(restored, 1), LookupEntry(table, 1));
  EXPECT_EQ(restored.max_update_sec(), 5678);
}

TEST_P(EmbeddingTableTest, ALimitOfOneTwiceVisitsBothIds) {
  EmbeddingTable table(Sgd(1));
  AssignAll(table, {0, 1}, 1.0f);
  DumpedRows dumped;
  const std::uint64_t place = table.Dump(0, table.num_places(), 1, nullptr, &dumped);
  ASSERT_EQ(dumped.size(), 1u);
  const std::uint64_t end = table.Dump(place, table.num_places(), 1, nullptr, &dumped);
  ASSERT_EQ(dumped.size(), 2u);
  const std::set<std::int64_t> ids = {ParseRecord(std::string(dumped[0])).id,
                                      ParseRecord(std::string(dumped[1])).id};
  EXPECT_EQ(ids, (std::set<std::int64_t>{0, 1}));
  // And that was all.
  dumped.Clear();
  EXPECT_EQ(table.Dump(end, table.num_places(), 1, nullptr, &dumped), table.num_places());
  EXPECT_EQ(dumped.size(), 0u);
}

TEST_P(EmbeddingTableTest, ExpiresByTheTimesOfItsSlots) {
  EmbeddingHashTableConfig config = Sgd(1);
  config.slot_expire_time_config.default_expire_time = 14;
  config.slot_expire_time_config.slot_expire_times = {{0, 0}, {1, 5}, {2, 6}};
  EmbeddingTable table(config);
  Ids ids;
  for (std::uint64_t slot = 0; slot < 4; ++slot) {
    for (std::uint64_t signature = 0; signature < 100; ++signature) {
      ids.push_back(IdInSlot(slot, signature));
    }
  }
  AssignAll(table, ids, 1.0f, At(1234));
  EXPECT_EQ(table.Evict(1234 + 5 * kDay + 60), 200u);  // Slots 0 and 1.
  EXPECT_EQ(table.size(), 200u);
  for (const std::int64_t id : ids) {
    EXPECT_EQ(table.Contains(id), SlotOf(id) >= 2) << "slot " << SlotOf(id);
    EXPECT_EQ(LookupOne(table, id), SlotOf(id) >= 2 ? 1.0f : 0.0f);
  }
  EXPECT_EQ(table.Evict(1234 + 6 * kDay - 1), 0u);
  EXPECT_EQ(table.Evict(1234 + 6 * kDay), 100u);  // Slot 2, to the second.
  EXPECT_EQ(table.Evict(1234 + 14 * kDay), 100u);
  EXPECT_EQ(table.size(), 0u);
}

TEST_P(EmbeddingTableTest, ADumpLeavesOutWhatHasExpired) {
  EmbeddingTable table(Sgd(1));
  AssignAll(table, {IdInSlot(1, 1), IdInSlot(2, 1)}, 1.0f, At(1000));
  AssignAll(table, {IdInSlot(1, 2), IdInSlot(2, 2)}, 1.0f, At(1000 + kDay));
  SlotExpireTimeConfig days;
  days.default_expire_time = 3;
  days.slot_expire_times = {{1, 1}};
  const SlotExpireTimes times(days);
  const Expiry expiry = {&times, 1000 + kDay};
  std::set<std::int64_t> ids;
  for (const std::string& record : DumpAll(table, &expiry)) ids.insert(ParseRecord(record).id);
  EXPECT_EQ(ids, (std::set<std::int64_t>{IdInSlot(2, 1), IdInSlot(1, 2), IdInSlot(2, 2)}));
  EXPECT_EQ(table.size(), 4u);  // The table keeps them all.
}

TEST_P(EmbeddingTableTest, KeepsTheGreatestUpdateTime) {
  EmbeddingTable table(Sgd(1));
  EXPECT_EQ(table.max_update_sec(), 0);
  AssignAll(table, {1}, 1.0f, At(2000));
  AssignAll(table, {2}, 1.0f, At(1000));
  EXPECT_EQ(table.max_update_sec(), 2000);
  const std::int64_t id = 3;
  std::int32_t status;
  table.Reinitialize(&id, 1, 3000, &status);
  EXPECT_EQ(table.max_update_sec(), 3000);
  // A time is 32 bits in the row; what lies beyond becomes the nearest that fits.
  AssignAll(table, {4}, 1.0f, At(-5));
  AssignAll(table, {5}, 1.0f, At((std::int64_t{1} << 32) + 7));
  EXPECT_EQ(ParseRecord(LookupEntry(table, 4)).last_update_ts_sec, 0);
  EXPECT_EQ(ParseRecord(LookupEntry(table, 5)).last_update_ts_sec, 0xFFFFFFFF);
}

// Serving tables.

TEST(ServingTableTest, SkipsZeroEmbeddingsOnAssign) {
  EmbeddingTable table(ServingTable(1, /*skip_zero_embedding=*/true));
  const Ids ids = Range(0, 3000);
  Floats values;
  for (const std::int64_t id : ids) values.push_back(static_cast<float>(id % 2));
  table.Assign(ids.data(), ids.size(), values.data(), {});
  EXPECT_EQ(table.size(), 1500u);
  for (const std::int64_t id : ids) EXPECT_EQ(table.Contains(id), id % 2 == 1);
  // A row that becomes zero leaves; the order within a batch counts.
  const Ids again = {1, 2, 2, 3, 3};
  const Floats then = {0, 5, 0, 0, 6};
  table.Assign(again.data(), again.size(), then.data(), {});
  EXPECT_FALSE(table.Contains(1));
  EXPECT_FALSE(table.Contains(2));
  EXPECT_EQ(LookupOne(table, 3), 6.0f);
}

TEST(ServingTableTest, SkipsZeroEmbeddingsOnRestore) {
  EmbeddingTable training(SgdTable(1));
  const Ids ids = Range(0, 3000);
  Floats values;
  for (const std::int64_t id : ids) values.push_back(static_cast<float>(id % 2));
  training.Assign(ids.data(), ids.size(), values.data(), At(77));
  EmbeddingTable table(ServingTable(1, /*skip_zero_embedding=*/true));
  RestoreAll(table, DumpAll(training));
  EXPECT_EQ(table.size(), 1500u);
  for (const std::int64_t id : ids) EXPECT_EQ(table.Contains(id), id % 2 == 1);
  EmbeddingTable all(ServingTable(1, /*skip_zero_embedding=*/false));
  RestoreAll(all, DumpAll(training));
  EXPECT_EQ(all.size(), 3000u);
}

TEST(ServingTableTest, SkippingZerosAsksTheFilterOnlyForOthersAndWithTheirOwnCounts) {
  struct Recorder final : AdmissionFilter {
    bool Admit(std::int64_t id, std::uint32_t count) override {
      asked.emplace_back(id, count);
      return true;
    }
    std::vector<std::pair<std::int64_t, std::uint32_t>> asked;
  };
  EmbeddingTable table(ServingTable(1, /*skip_zero_embedding=*/true));
  Recorder filter;
  const Ids ids = {1, 2, 3};
  const Floats values = {1, 0, 1};
  const std::uint32_t counts[] = {10, 20, 30};
  WriteOptions options;
  options.filter = &filter;
  options.counts = counts;
  table.Assign(ids.data(), ids.size(), values.data(), options);
  using Asked = std::vector<std::pair<std::int64_t, std::uint32_t>>;
  EXPECT_EQ(filter.asked, (Asked{{1, 10}, {3, 30}}));
}

TEST(ServingTableTest, AssignAddStartsFromZeros) {
  EmbeddingTable table(ServingTable(2, false));
  AssignAll(table, {5}, 9.0f);
  const std::int64_t id = 5;
  EXPECT_EQ(table.Erase(&id, 1), 1u);
  const Floats update = {1, 2};
  table.AssignAdd(&id, 1, update.data(), {});  // Reuses the place that held nines.
  EXPECT_EQ(LookupAll(table, {5}), update);
}

TEST(ServingTableTest, RefusesWhatOnlyTrainingCanDo) {
  EmbeddingTable table(ServingTable(1, false));
  AssignAll(table, {1}, 1.0f);
  const Floats ones = {1};
  const std::int64_t id = 1;
  std::string entry;
  DumpedRows dumped;
  const Parallel parallel = OnThreads(3);
  WriteOptions on_threads;
  on_threads.parallel = &parallel;
  EXPECT_THROW(table.Optimize(&id, 1, ones.data(), ones.data(), 1, {}), std::invalid_argument);
  EXPECT_THROW(table.Optimize(&id, 1, ones.data(), ones.data(), 1, on_threads),
               std::invalid_argument);
  EXPECT_THROW(table.LookupEntry(&id, 1, &entry), std::invalid_argument);
  EXPECT_THROW((void)table.Dump(0, 100, 100, nullptr, &dumped), std::invalid_argument);
  EXPECT_EQ(LookupOne(table, 1), 1.0f);  // No lock was left behind.
}

// What a config has to be.

TEST(EmbeddingTableConfigTest, RefusesWhatIsNoTable) {
  EmbeddingHashTableConfig no_type = SgdTable(1);
  no_type.type = EmbeddingHashTableConfig::Type::kUnset;
  EXPECT_THROW(EmbeddingTable{no_type}, std::invalid_argument);
  EXPECT_THROW(EmbeddingTable{TrainingTable({})}, std::invalid_argument);
  EmbeddingHashTableConfig skips_zeros = SgdTable(1);
  skips_zeros.skip_zero_embedding = true;
  EXPECT_THROW(EmbeddingTable{skips_zeros}, std::invalid_argument);
}

TEST(EmbeddingTableConfigTest, SegmentsHaveTheirOwnLearningRates) {
  EmbeddingTable table(TrainingTable(
      {TrainingSegment(Wrap(SgdConfig()), 1), TrainingSegment(Wrap(SgdConfig()), 2)}));
  const std::int64_t id = 1;
  const Floats grads = {1, 2, 3};
  const Floats rates = {1, 2};
  table.Optimize(&id, 1, grads.data(), rates.data(), 0, {});
  EXPECT_EQ(LookupAll(table, {1}), (Floats{-1, -4, -6}));
}

TEST(EmbeddingTableConfigTest, InitialCapacityChangesNothingButMemory) {
  EmbeddingHashTableConfig config = SgdTable(1);
  config.initial_capacity = 500'000;
  EmbeddingTable table(config);
  EXPECT_EQ(table.size(), 0u);
  EXPECT_EQ(table.num_places(), 0u);
  const std::size_t memory = table.MemoryBytes();
  EXPECT_GT(memory, 500'000u * 5);  // Five bytes of index per row at the least.
  EXPECT_LT(memory, 500'000u * 30);
  const Ids ids = Range(0, 100'000);
  AssignAll(table, ids, 2.0f);
  EXPECT_EQ(LookupAll(table, ids), Floats(ids.size(), 2.0f));
  EXPECT_EQ(table.size(), ids.size());
}

TEST(EmbeddingTableConfigTest, DebugStringIsJsonWithTheSizes) {
  EmbeddingTable table(SgdTable(2));
  AssignAll(table, {1, 2, 3}, 1.0f);
  const std::string text = table.DebugString();
  for (const char* part : {"\"accessor\": \"", "\"size\": 3,",
                           "\"memory\": ", "\"memory_if_not_compressed\": ", "\"load_factor\": "}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " in " << text;
  }
  EXPECT_EQ(text.front(), '{');
  EXPECT_EQ(text.back(), '}');
}

TEST(EmbeddingTableConfigTest, RandomUniformRowsLieWithinTheirBounds) {
  RandomUniformConfig uniform;
  uniform.minval = 1.0f;
  uniform.maxval = 3.0f;
  EmbeddingTable table(
      TrainingTable({TrainingSegment(Wrap(SgdConfig()), 4, testing::Initial(uniform))}));
  const Ids ids = Range(0, 10'000);
  Step(table, ids, /*grad=*/0.0f, /*learning_rate=*/1.0f);
  const Floats rows = LookupAll(table, ids);
  EXPECT_GE(*std::min_element(rows.begin(), rows.end()), 1.0f);
  EXPECT_LT(*std::max_element(rows.begin(), rows.end()), 3.0f);
  EXPECT_LT(*std::min_element(rows.begin(), rows.end()), 1.01f);
  EXPECT_GT(*std::max_element(rows.begin(), rows.end()), 2.99f);
  // 40'000 draws: the mean's standard deviation is 2 / sqrt(12 * 40'000) = 0.003.
  const double sum = std::accumulate(rows.begin(), rows.end(), 0.0);
  EXPECT_NEAR(sum / static_cast<double>(rows.size()), 2.0, 0.015);
  const std::set<float> different(rows.begin(), rows.end());
  EXPECT_GT(different.size(), 39'000u);  // 24 random bits: about 50 of 40'000 meet.
}

// Admission.

// Admits an id once it has been seen `threshold` times, and remembers what it was asked.
class CountingFilter final : public AdmissionFilter {
 public:
  explicit CountingFilter(std::uint32_t threshold) : threshold_(threshold) {}

  bool Admit(std::int64_t id, std::uint32_t count) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    asked.emplace_back(id, count);
    return (seen_[id] += count) >= threshold_;
  }

  std::vector<std::pair<std::int64_t, std::uint32_t>> asked;

 private:
  const std::uint32_t threshold_;
  std::mutex mutex_;
  std::map<std::int64_t, std::uint32_t> seen_;
};

TEST(EmbeddingTableFilterTest, IdsGetRowsOnlyWhenAdmitted) {
  EmbeddingTable table(SgdTable(1));
  CountingFilter filter(3);
  WriteOptions options;
  options.filter = &filter;
  options.update_time_sec = 50;
  // Twice in one call, not yet.
  Step(table, {7, 7}, -1.0f, 1.0f, 1, options);
  EXPECT_FALSE(table.Contains(7));
  EXPECT_EQ(LookupOne(table, 7), 0.0f);
  EXPECT_EQ(table.max_update_sec(), 50);
  // The third occurrence gets the row; what the first two brought is lost, and the filter is not
  // asked for an id that has a row.
  Step(table, {7, 7, 8}, -1.0f, 1.0f, 1, options);
  EXPECT_EQ(LookupOne(table, 7), 2.0f);
  EXPECT_FALSE(table.Contains(8));
  using Asked = std::vector<std::pair<std::int64_t, std::uint32_t>>;
  std::sort(filter.asked.begin(), filter.asked.end());
  EXPECT_EQ(filter.asked, (Asked{{7, 1}, {7, 1}, {7, 1}, {8, 1}}));
}

TEST(EmbeddingTableFilterTest, EveryWriteAsksAndALookupDoesNot) {
  EmbeddingTable table(SgdTable(1));
  CountingFilter filter(3);
  WriteOptions options;
  options.filter = &filter;
  const std::int64_t id = 1;
  const float one = 1.0f;
  table.Assign(&id, 1, &one, options);
  (void)LookupOne(table, id);
  table.AssignAdd(&id, 1, &one, options);
  EXPECT_EQ(table.size(), 0u);
  EXPECT_EQ(filter.asked.size(), 2u);
  table.AssignAdd(&id, 1, &one, options);
  EXPECT_EQ(LookupOne(table, id), 1.0f);
  EXPECT_EQ(filter.asked.size(), 3u);
}

TEST(EmbeddingTableFilterTest, CountsBelongToTheirIds) {
  EmbeddingTable table(SgdTable(1));
  CountingFilter filter(10);
  const std::size_t n = kLongCall;
  Ids ids(n);
  std::vector<std::uint32_t> counts(n);
  for (std::size_t i = 0; i < n; ++i) {
    ids[i] = static_cast<std::int64_t>(i) * 1'000'003;
    counts[i] = static_cast<std::uint32_t>(i % 20);
  }
  WriteOptions options;
  options.filter = &filter;
  options.counts = counts.data();
  Step(table, ids, -1.0f, 1.0f, 1, options);
  ASSERT_EQ(filter.asked.size(), n);
  for (const auto& [id, count] : filter.asked) {
    ASSERT_EQ(count, static_cast<std::uint32_t>(id / 1'000'003 % 20));
  }
  for (std::size_t i = 0; i < n; i += 997) EXPECT_EQ(table.Contains(ids[i]), counts[i] >= 10);
}

// Fresh rows.

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

TEST(EmbeddingTableRowsTest, AgreesWithAMapUnderRandomCalls) {
  EmbeddingTable table(SgdTable(1));
  std::map<std::int64_t, float> model;
  std::mt19937_64 random(5);
  for (int call = 0; call < 3000; ++call) {
    // Ids of a small range, so that calls meet; some around the numbers of rows.
    Ids ids(random() % 200);
    for (auto& id : ids) id = static_cast<std::int64_t>(random() % 3000) - 100;
    Floats values(ids.size());
    for (auto& value : values) value = static_cast<float>(random() % 100);
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
  EXPECT_EQ(AsSet(DumpAll(parallel)), AsSet(DumpAll(serial)));
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

// Dumps.

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
  const std::set<std::string> saved = AsSet(DumpAll(table));
  ASSERT_EQ(saved.size(), ids.size());
  EmbeddingTable restored(config);
  AssignAll(restored, Range(0, 10), 77.0f);  // Restoring overwrites rows that are there.
  RestoreAll(restored, {saved.begin(), saved.end()});
  EXPECT_EQ(restored.size(), table.size());
  EXPECT_EQ(AsSet(DumpAll(restored)), saved);
  EXPECT_EQ(LookupAll(restored, ids), LookupAll(table, ids));
  EXPECT_EQ(restored.max_update_sec(), table.max_update_sec());

  table.Optimize(ids.data(), ids.size(), grads.data(), &rate, 4, At(200));
  restored.Optimize(ids.data(), ids.size(), grads.data(), &rate, 4, At(200));
  const std::set<std::string> next = AsSet(DumpAll(table));
  EXPECT_NE(next, saved);
  EXPECT_EQ(AsSet(DumpAll(restored)), next);
}

TEST(EmbeddingTableDumpTest, PiecesOfAnySizeGiveAllRowsOnce) {
  EmbeddingTable table(SgdTable(1));
  AssignAll(table, Range(0, 3000), 1.0f);
  const Ids gone = Range(1000, 1100);
  table.Erase(gone.data(), gone.size());
  const std::set<std::string> all = AsSet(DumpAll(table));
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
      ASSERT_EQ(AsSet(records), all) << pieces << " pieces, " << at_once << " at once";
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
