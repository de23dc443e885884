// Sums and means of rows, against rows that are looked up one by one.
#include "core/table/row_bags.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <vector>

#include "core/table/embedding_table.h"
#include "core/testing/tables.h"

namespace monolith::core {
namespace {

using Ids = std::vector<std::int64_t>;
using Floats = std::vector<float>;

// Id i has the row (i, -i).
std::unique_ptr<EmbeddingTable> MakeTable(std::int64_t num_ids) {
  auto table = std::make_unique<EmbeddingTable>(testing::SgdTable(2));
  for (std::int64_t id = 0; id < num_ids; ++id) {
    const Floats row = {static_cast<float>(id), -static_cast<float>(id)};
    table->Assign(&id, 1, row.data(), {});
  }
  return table;
}

Floats LookupAll(const EmbeddingTable& table, const Ids& ids, const Ids& splits,
                 BagCombiner combiner) {
  Floats bags((splits.size() - 1) * table.dim(), 7.0f);
  LookupBags(table, ids.data(), splits.data(), 0, splits.size() - 1, combiner, bags.data());
  return bags;
}

TEST(RowBagsTest, BagsAreSummedAndScaled) {
  const auto table = MakeTable(10);
  const Ids ids = {1, 2, 3, 4, 4, 99};
  const Ids splits = {0, 0, 3, 5, 6, 6};  // (), (1, 2, 3), (4, 4), (99, which has no row), ()
  EXPECT_EQ(LookupAll(*table, ids, splits, BagCombiner::kSum),
            (Floats{0, 0, 6, -6, 8, -8, 0, 0, 0, 0}));
  EXPECT_EQ(LookupAll(*table, ids, splits, BagCombiner::kMean),
            (Floats{0, 0, 6 * (1.0f / 3), -6 * (1.0f / 3), 4, -4, 0, 0, 0, 0}));
  EXPECT_EQ(LookupAll(*table, ids, splits, BagCombiner::kSqrtN)[4], 8 * (1.0f / std::sqrt(2.0f)));
}

TEST(RowBagsTest, BagsMayBeLongerThanWhatIsLookedUpAtOnceAndEndAnywhere) {
  const auto table = MakeTable(1000);
  Ids ids;
  for (std::int64_t i = 0; i < 1000; ++i) ids.push_back(i);
  const Ids splits = {0, 1, 255, 256, 257, 900, 1000};
  const Floats bags = LookupAll(*table, ids, splits, BagCombiner::kSum);
  for (std::size_t bag = 0; bag + 1 < splits.size(); ++bag) {
    float expected = 0;
    for (std::int64_t i = splits[bag]; i < splits[bag + 1]; ++i) expected += static_cast<float>(i);
    EXPECT_EQ(bags[2 * bag], expected) << bag;
  }
}

TEST(RowBagsTest, APartOfTheBagsLeavesTheOthersAlone) {
  const auto table = MakeTable(10);
  const Ids ids = {1, 2, 3, 4};
  const Ids splits = {0, 1, 3, 4};
  Floats bags(6, 7.0f);
  LookupBags(*table, ids.data(), splits.data(), 1, 2, BagCombiner::kSum, bags.data());
  EXPECT_EQ(bags, (Floats{7, 7, 5, -5, 7, 7}));
}

TEST(RowBagsTest, GradientsGoToEveryIdOfTheBag) {
  const Ids splits = {0, 2, 2, 3};
  const Floats bags = {1, 2, 3, 4, 5, 6};
  Floats rows(6, 7.0f);
  SpreadBags(splits.data(), 0, 3, 2, BagCombiner::kMean, bags.data(), rows.data());
  EXPECT_EQ(rows, (Floats{0.5f, 1, 0.5f, 1, 5, 6}));
  SpreadBags(splits.data(), 0, 3, 2, BagCombiner::kSum, bags.data(), rows.data());
  EXPECT_EQ(rows, (Floats{1, 2, 1, 2, 5, 6}));
}

// The same update as with a row of gradients for each id, on few ids and on many.
TEST(RowBagsTest, IdsMayShareTheGradientsOfTheirBags) {
  for (const std::int64_t num_ids : {5, 500}) {
    for (const bool summed : {false, true}) {
      Ids ids, splits = {0};
      for (std::int64_t i = 0; i < num_ids; ++i) {
        ids.push_back(i * i % 71);
        if (i % 7 == 4 || i + 1 == num_ids) splits.push_back(i + 1);
      }
      splits.insert(splits.begin() + 1, 0);  // One bag is empty.
      const std::size_t num_bags = splits.size() - 1;
      Floats bags;
      for (std::size_t b = 0; b < num_bags; ++b) {
        bags.push_back(static_cast<float>(b));
        bags.push_back(-1.0f);
      }
      Floats rows(2 * num_ids), scaled(2 * num_bags);
      std::vector<std::uint32_t> bag_of(num_ids);
      SpreadBags(splits.data(), 0, num_bags, 2, BagCombiner::kMean, bags.data(), rows.data());
      ShareBags(splits.data(), num_bags, 2, BagCombiner::kMean, bags.data(), bag_of.data(),
                scaled.data());
      const auto one = MakeTable(9), other = MakeTable(9);
      const auto optimize = summed ? &EmbeddingTable::OptimizeSummed : &EmbeddingTable::Optimize;
      const float rate = 1.0f;
      ((*one).*optimize)(ids.data(), num_ids, rows.data(), &rate, 1, {});
      WriteOptions options;
      options.gradient_of = bag_of.data();
      ((*other).*optimize)(ids.data(), num_ids, scaled.data(), &rate, 1, options);
      Floats expected(2 * num_ids), found(2 * num_ids);
      one->Lookup(ids.data(), num_ids, expected.data());
      other->Lookup(ids.data(), num_ids, found.data());
      EXPECT_EQ(found, expected) << num_ids << " " << summed;
    }
  }
}

TEST(RowBagsTest, CombinersHaveNames) {
  EXPECT_EQ(ParseBagCombiner("sum"), BagCombiner::kSum);
  EXPECT_EQ(ParseBagCombiner("mean"), BagCombiner::kMean);
  EXPECT_EQ(ParseBagCombiner("sqrtn"), BagCombiner::kSqrtN);
  EXPECT_THROW((void)ParseBagCombiner("max"), std::invalid_argument);
}

}  // namespace
}  // namespace monolith::core
