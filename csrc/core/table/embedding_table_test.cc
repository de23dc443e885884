#include "core/table/embedding_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <mutex>
#include <numeric>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "core/testing/bytes.h"
#include "core/testing/tables.h"

namespace monolith::core {
namespace {

using testing::AdagradTable;
using testing::AssignAll;
using testing::At;
using testing::DumpAll;
using testing::kLongCall;
using testing::LookupAll;
using testing::LookupEntry;
using testing::LookupOne;
using testing::OnThreads;
using testing::ParseRecord;
using testing::Range;
using testing::RestoreAll;
using testing::ServingTable;
using testing::SgdTable;
using testing::Step;
using testing::ToHex;
using testing::TrainingSegment;
using testing::TrainingTable;
using testing::Wrap;
using Ids = std::vector<std::int64_t>;
using Floats = std::vector<float>;

constexpr std::int64_t kDay = 86'400;

std::int64_t IdInSlot(std::uint64_t slot, std::uint64_t signature) {
  return static_cast<std::int64_t>(slot << 48 | signature);
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

TEST(EmbeddingTableConfigTest, ACapacityOfBillionsReservesForMillions) {
  EmbeddingHashTableConfig config = SgdTable(1);
  config.initial_capacity = std::size_t{1} << 31;  // An index for all of them takes 15 GB.
  EmbeddingTable table(config);
  EXPECT_GT(table.MemoryBytes(), std::size_t{100} << 20);
  EXPECT_LT(table.MemoryBytes(), std::size_t{300} << 20);
  AssignAll(table, Range(0, 1000), 2.0f);
  EXPECT_EQ(LookupAll(table, Range(0, 1000)), Floats(1000, 2.0f));
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

// The ids of a long call, each up to a few times, in an order that mixes them.
Ids IdsWithEqualOnes(std::size_t n) {
  Ids ids(n);
  for (std::size_t i = 0; i < n; ++i) ids[i] = static_cast<std::int64_t>(i * 7919 % n % (n / 3));
  return ids;
}

class OptimizeSummedTest : public ::testing::TestWithParam<bool> {};

INSTANTIATE_TEST_SUITE_P(OnThreads, OptimizeSummedTest, ::testing::Bool());

TEST_P(OptimizeSummedTest, IsOneStepOnTheSum) {
  const std::size_t n = kLongCall;
  const Ids ids = IdsWithEqualOnes(n);
  Floats grads(n);
  std::map<std::int64_t, float> sums;
  for (std::size_t i = 0; i < n; ++i) {
    grads[i] = static_cast<float>(i % 5) - 2;  // Their sums are exact.
    sums[ids[i]] += grads[i];
  }
  Ids distinct;
  Floats summed;
  for (const auto& [id, sum] : sums) {
    distinct.push_back(id);
    summed.push_back(sum);
  }
  EmbeddingTable table(AdagradTable(1)), expected(AdagradTable(1));
  const Parallel parallel = OnThreads(3);
  WriteOptions options;
  options.update_time_sec = 7;
  if (GetParam()) options.parallel = &parallel;
  const float learning_rate = 0.5f;
  table.OptimizeSummed(ids.data(), n, grads.data(), &learning_rate, 1, options);
  expected.Optimize(distinct.data(), distinct.size(), summed.data(), &learning_rate, 1, {});
  EXPECT_EQ(table.size(), distinct.size());
  EXPECT_EQ(LookupAll(table, distinct), LookupAll(expected, distinct));
  EXPECT_EQ(table.max_update_sec(), 7);
}

TEST_P(OptimizeSummedTest, ACallWithoutIdsLeavesThoseOfTheLastOneAlone) {
  EmbeddingTable table(SgdTable(1));
  const Parallel parallel = OnThreads(3);
  WriteOptions options;
  if (GetParam()) options.parallel = &parallel;
  const Ids ids = Range(0, 100);
  const Floats grads(ids.size(), 1.0f);
  const float learning_rate = 1.0f;
  table.OptimizeSummed(ids.data(), ids.size(), grads.data(), &learning_rate, 1, options);
  table.OptimizeSummed(ids.data(), 0, grads.data(), &learning_rate, 2, options);
  table.Optimize(ids.data(), 0, grads.data(), &learning_rate, 3, options);
  EXPECT_EQ(LookupAll(table, ids), Floats(ids.size(), -1.0f));
}

TEST_P(OptimizeSummedTest, FilterIsAskedOncePerIdWithItsCount) {
  const std::size_t n = kLongCall;
  const Ids ids = IdsWithEqualOnes(n);
  std::map<std::int64_t, std::uint32_t> counts;
  for (const std::int64_t id : ids) ++counts[id];
  EmbeddingTable table(SgdTable(1));
  CountingFilter filter(4);
  const Parallel parallel = OnThreads(3);
  WriteOptions options;
  options.filter = &filter;
  if (GetParam()) options.parallel = &parallel;
  const Floats grads(n, 1.0f);
  const float learning_rate = 1.0f;
  table.OptimizeSummed(ids.data(), n, grads.data(), &learning_rate, 1, options);
  ASSERT_EQ(filter.asked.size(), counts.size());
  for (const auto& [id, count] : filter.asked) ASSERT_EQ(count, counts.at(id));
  for (const auto& [id, count] : counts) {
    ASSERT_EQ(LookupOne(table, id), count >= 4 ? -static_cast<float>(count) : 0.0f);
  }
}

}  // namespace
}  // namespace monolith::core
