#include "core/table/row_summer.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <random>
#include <unordered_map>
#include <vector>

#include "core/table/hash.h"

namespace monolith::core {
namespace {

using Ids = std::vector<std::int64_t>;
using Floats = std::vector<float>;
using Counts = std::vector<std::uint32_t>;

struct Summed {
  Ids ids;
  Floats rows;
  Counts counts;
};

Summed Sum(const Ids& ids, const Floats& rows, std::size_t dim) {
  static RowSummer summer;  // One for all the tests: nothing is left over from a batch before.
  summer.Reset(ids.size(), dim);
  for (std::size_t i = 0; i < ids.size(); ++i) summer.Add(HashId(ids[i]), rows.data() + i * dim);
  Summed summed;
  for (std::size_t i = 0; i < summer.size(); ++i) {
    summed.ids.push_back(IdOfHash(summer.hash(i)));
    summed.rows.insert(summed.rows.end(), summer.row(i), summer.row(i) + dim);
    summed.counts.push_back(summer.count(i));
  }
  return summed;
}

TEST(RowSummerTest, NoIdsGiveNothing) {
  const Summed distinct = Sum({}, {}, 4);
  EXPECT_TRUE(distinct.ids.empty());
  EXPECT_TRUE(distinct.rows.empty());
  EXPECT_TRUE(distinct.counts.empty());
}

TEST(RowSummerTest, SumsEqualIdsInTheOrderOfTheirFirstOccurrence) {
  const Summed distinct = Sum({7, -3, 7, 0, -3, 7}, {1, 10, 2, 20, 3, 30, 4, 40, 5, 50, 6, 60},
                              /*dim=*/2);
  EXPECT_EQ(distinct.ids, (Ids{7, -3, 0}));
  // 7: 1 + 3 + 6; -3: 2 + 5; 0: 4.
  EXPECT_EQ(distinct.rows, (Floats{10, 100, 7, 70, 4, 40}));
  EXPECT_EQ(distinct.counts, (Counts{3, 2, 1}));
}

TEST(RowSummerTest, DistinctIdsPassThrough) {
  const Ids ids = {0, -1, std::numeric_limits<std::int64_t>::min(),
                   std::numeric_limits<std::int64_t>::max(), 0xFFFFFFFF};
  const Summed distinct = Sum(ids, {1, 2, 3, 4, 5}, 1);
  EXPECT_EQ(distinct.ids, ids);
  EXPECT_EQ(distinct.rows, (Floats{1, 2, 3, 4, 5}));
  EXPECT_EQ(distinct.counts, Counts(5, 1));
}

TEST(RowSummerTest, OneIdManyTimes) {
  const std::size_t n = 100'000;
  const Summed distinct = Sum(Ids(n, 42), Floats(n * 3, 1.0f), 3);
  EXPECT_EQ(distinct.ids, (Ids{42}));
  EXPECT_EQ(distinct.rows, Floats(3, static_cast<float>(n)));
  EXPECT_EQ(distinct.counts, (Counts{static_cast<std::uint32_t>(n)}));
}

TEST(RowSummerTest, AgreesWithAMap) {
  std::mt19937_64 random(1);
  for (const std::uint64_t range : {10u, 1000u, 1'000'000u}) {
    constexpr std::size_t kDim = 2;
    Ids ids(20'000);
    Floats rows(ids.size() * kDim);
    std::unordered_map<std::int64_t, std::size_t> position;
    Ids expected_ids;
    Floats expected_rows;
    Counts expected_counts;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      ids[i] = static_cast<std::int64_t>((random() % range) << 48 | (random() % 2));
      // Small whole numbers: their float sums are exact in any order.
      for (std::size_t d = 0; d < kDim; ++d) {
        rows[i * kDim + d] = static_cast<float>(random() % 100);
      }
      const auto [found, is_new] = position.try_emplace(ids[i], expected_ids.size());
      if (is_new) {
        expected_ids.push_back(ids[i]);
        expected_counts.push_back(0);
        expected_rows.resize(expected_rows.size() + kDim);
      }
      ++expected_counts[found->second];
      for (std::size_t d = 0; d < kDim; ++d) {
        expected_rows[found->second * kDim + d] += rows[i * kDim + d];
      }
    }
    const Summed distinct = Sum(ids, rows, kDim);
    EXPECT_EQ(distinct.ids, expected_ids);
    EXPECT_EQ(distinct.rows, expected_rows);
    EXPECT_EQ(distinct.counts, expected_counts);
  }
}

}  // namespace
}  // namespace monolith::core
