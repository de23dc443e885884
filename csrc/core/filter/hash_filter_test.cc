#include "core/filter/hash_filter.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <fstream>
#include <stdexcept>
#include <thread>
#include <vector>

namespace monolith::core {
namespace {

template <typename Cell>
class HashFilterTest : public ::testing::Test {};
using Cells = ::testing::Types<std::uint8_t, std::uint16_t>;
TYPED_TEST_SUITE(HashFilterTest, Cells);

TYPED_TEST(HashFilterTest, CountsOneByOneUpToFifteen) {
  HashFilter<TypeParam> filter(/*capacity=*/100);
  for (std::uint32_t seen = 0; seen < 20; ++seen) {
    const std::uint32_t expected = seen < 15 ? seen : 15;
    EXPECT_EQ(filter.Get(1), expected);
    EXPECT_EQ(filter.Add(1, 1), expected);
  }
  EXPECT_EQ(filter.num_elements(), 1u);
}

TYPED_TEST(HashFilterTest, AddsManyAtOnceAndSaturates) {
  HashFilter<TypeParam> filter(100);
  EXPECT_EQ(filter.Add(7, 4), 0u);
  EXPECT_EQ(filter.Add(7, 10), 4u);
  EXPECT_EQ(filter.Add(7, 0xFFFFFFFFu), 14u);
  EXPECT_EQ(filter.Get(7), 15u);
  EXPECT_EQ(filter.Add(8, 0xFFFFFFFFu), 0u);
  EXPECT_EQ(filter.Get(8), 15u);
  EXPECT_EQ(filter.Get(7), 15u);
}

TYPED_TEST(HashFilterTest, NoOccurrencesLeaveNoTrace) {
  HashFilter<TypeParam> filter(100);
  EXPECT_EQ(filter.Add(3 << 17, 0), 0u);
  EXPECT_EQ(filter.num_elements(), 0u);
}

TYPED_TEST(HashFilterTest, IsFullOneCellShortOfItsCapacityAndClears) {
  HashFilter<TypeParam> filter(10);
  for (int id = 0; id < 9; ++id) {
    EXPECT_FALSE(filter.full());
    filter.Add(id, 1);
  }
  EXPECT_TRUE(filter.full());
  EXPECT_EQ(filter.num_elements(), 9u);
  filter.Clear();
  EXPECT_FALSE(filter.full());
  EXPECT_EQ(filter.num_elements(), 0u);
  EXPECT_EQ(filter.Get(3), 0u);
}

TYPED_TEST(HashFilterTest, FullProbeRangeIsAFailureThatLooksOften) {
  HashFilter<TypeParam> filter(100, 1.5, /*max_step=*/2);
  // Position 0 modulo 150, signatures 1 * 150, 2 * 150 and 3 * 150 modulo 16 or 4096: all differ.
  const std::int64_t step = std::int64_t{150} << 17;
  EXPECT_EQ(filter.Add(1 * step, 1), 0u);
  EXPECT_EQ(filter.Add(2 * step, 1), 0u);
  EXPECT_EQ(filter.Add(3 * step, 1), 15u);
  EXPECT_EQ(filter.Get(3 * step), 15u);
  EXPECT_EQ(filter.failure_count(), 1u);
  EXPECT_EQ(filter.num_elements(), 2u);
  EXPECT_EQ(filter.Get(1 * step), 1u);
  filter.Clear();
  EXPECT_EQ(filter.failure_count(), 0u);
}

TYPED_TEST(HashFilterTest, EqualSignatureInTheSameProbeRangeSharesACount) {
  HashFilter<TypeParam> filter(100);
  EXPECT_EQ(filter.Add(5, 3), 0u);
  EXPECT_EQ(filter.Add(5 + 150, 1), 3u);  // Same position, bits 17 and up all zero.
  EXPECT_EQ(filter.num_elements(), 1u);
}

TYPED_TEST(HashFilterTest, NeighboursThatCountFromZeroDoNotShare) {
  HashFilter<TypeParam> filter(100);
  for (int id = 0; id < 100; ++id) EXPECT_EQ(filter.Add(id, 1 + id % 5), 0u);
  for (int id = 0; id < 100; ++id) EXPECT_EQ(filter.Get(id), 1u + id % 5);
}

TYPED_TEST(HashFilterTest, NegativeIdsAreReadAsUnsigned) {
  HashFilter<TypeParam> filter(100);
  EXPECT_EQ(filter.Add(-1, 2), 0u);
  EXPECT_EQ(filter.Add(-1, 1), 2u);
  // 2^64 - 1 modulo 150.
  EXPECT_EQ(filter.cells()[18446744073709551615ull % 150] & 15, 3);
}

TEST(HashFilterLayout, CellIsSignatureThenCount) {
  HashFilter<std::uint16_t> filter(100);
  const std::int64_t id = (std::int64_t{0xABC} << 17) + 9;
  filter.Add(id, 6);
  EXPECT_EQ(filter.cells()[id % 150], 0xABC6);
  HashFilter<std::uint8_t> small(100);
  small.Add(id, 6);
  EXPECT_EQ(small.cells()[id % 150], 0xC6);
}

TEST(HashFilterLayout, HasATailBehindTheLastPosition) {
  EXPECT_EQ(HashFilter<std::uint16_t>(3, 1.2, 16).num_cells(), 3u + 64u);
  EXPECT_EQ(HashFilter<std::uint16_t>(50'000'000, 1.2, 16).num_cells(), 60'000'000u + 64u);
}

TEST(HashFilterLayout, LoadedCellsAreCounted) {
  HashFilter<std::uint16_t> filter(100);
  const std::vector<std::uint32_t> cells = {0, 5, 0, 0x17};
  filter.LoadCells(7, cells.data(), cells.size());
  EXPECT_EQ(filter.num_elements(), 2u);
  EXPECT_EQ(filter.Get(8), 5u);               // Signature 0.
  EXPECT_EQ(filter.Get((1 << 17) + 38), 7u);  // Signature 1, and 131110 is 10 modulo 150.
}

TEST(HashFilterUse, DisjointProbeRangesMayBeUsedAtOnce) {
  HashFilter<std::uint16_t> filter(100'000);  // 150000 positions.
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&filter, t] {
      for (int round = 0; round < 3; ++round) {
        for (int i = 0; i < 10'000; ++i) filter.Add(t * 20'000 + i, 1);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(filter.num_elements(), 40'000u);
  for (int t = 0; t < 4; ++t) EXPECT_EQ(filter.Get(t * 20'000 + 1234), 3u);
}

TEST(HashFilterUse, RefusesWhatMakesNoTable) {
  EXPECT_THROW(HashFilter<std::uint16_t>(0), std::invalid_argument);
  EXPECT_THROW(HashFilter<std::uint16_t>(10, -1.0), std::invalid_argument);
  EXPECT_THROW(HashFilter<std::uint16_t>(std::size_t{1} << 32), std::invalid_argument);
  EXPECT_THROW(HashFilter<std::uint16_t>(10, 1.5, 0), std::invalid_argument);
  EXPECT_THROW(HashFilter<std::uint16_t>(10, 1.5, 65), std::invalid_argument);
}

std::size_t ResidentBytes() {
  std::size_t total = 0;
  std::size_t resident = 0;
  std::ifstream("/proc/self/statm") >> total >> resident;
  return resident * 4096;
}

TEST(HashFilterUse, MemoryIsTakenWhenTouched) {
#ifdef MONOLITH_SANITIZED
  GTEST_SKIP() << "sanitizers keep memory of their own for every allocation";
#endif
  const std::size_t before = ResidentBytes();
  HashFilter<std::uint16_t> filter(300'000'000);  // 900 MB of cells.
  for (int id = 0; id < 1000; ++id) filter.Add(id, 1);
  filter.Clear();
  EXPECT_LT(ResidentBytes() - before, std::size_t{64} << 20);
}

}  // namespace
}  // namespace monolith::core
