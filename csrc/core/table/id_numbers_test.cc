#include "core/table/id_numbers.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <random>
#include <unordered_map>
#include <vector>

namespace monolith::core {
namespace {

TEST(IdNumbersTest, NumbersFollowTheOrderInWhichIdsFirstCome) {
  IdNumbers numbers(4);
  EXPECT_EQ(numbers.Add(7), 0u);
  EXPECT_EQ(numbers.Add(-3), 1u);
  EXPECT_EQ(numbers.Add(7), 0u);
  EXPECT_EQ(numbers.Add(0), 2u);
  EXPECT_EQ(numbers.size(), 3u);
  EXPECT_EQ(numbers.ids(), (std::vector<std::int64_t>{7, -3, 0}));
}

TEST(IdNumbersTest, FindsOnlyWhatWasAdded) {
  IdNumbers numbers(2);
  EXPECT_EQ(numbers.Find(5), IdNumbers::kAbsent);
  numbers.Add(5);
  EXPECT_EQ(numbers.Find(5), 0u);
  EXPECT_EQ(numbers.Find(6), IdNumbers::kAbsent);
}

TEST(IdNumbersTest, AllIdsAreLegal) {
  constexpr std::int64_t kLowest = std::numeric_limits<std::int64_t>::min();
  constexpr std::int64_t kHighest = std::numeric_limits<std::int64_t>::max();
  IdNumbers numbers(4);
  const std::vector<std::int64_t> ids = {kLowest, kHighest, 0, -1};
  for (const std::int64_t id : ids) numbers.Add(id);
  EXPECT_EQ(std::move(numbers).TakeIds(), ids);
}

TEST(IdNumbersTest, NoIdsAtAll) {
  const IdNumbers numbers(0);
  EXPECT_EQ(numbers.size(), 0u);
  EXPECT_EQ(numbers.Find(1), IdNumbers::kAbsent);
}

TEST(IdNumbersTest, TooManyIdsAreRefusedBeforeMemoryIsTaken) {
  EXPECT_THROW(IdNumbers(std::size_t{1} << 40), std::length_error);
}

TEST(IdNumbersTest, LikeAMapForRandomIdsOfFewValuesAndOfMany) {
  for (const std::int64_t range : {3, 1000, 1 << 30}) {
    std::mt19937_64 random(range);
    std::uniform_int_distribution<std::int64_t> id_of(-range, range);
    std::unordered_map<std::int64_t, std::uint32_t> expected;
    IdNumbers numbers(20000);
    for (int i = 0; i < 20000; ++i) {
      const std::int64_t id = id_of(random);
      const auto number = expected.emplace(id, expected.size()).first->second;
      ASSERT_EQ(numbers.Add(id), number);
    }
    ASSERT_EQ(numbers.size(), expected.size());
    for (const auto& [id, number] : expected) {
      ASSERT_EQ(numbers.Find(id), number);
      ASSERT_EQ(numbers.ids()[number], id);
    }
  }
}

}  // namespace
}  // namespace monolith::core
