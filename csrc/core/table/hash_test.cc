#include "core/table/hash.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <random>
#include <unordered_set>
#include <vector>

#include "core/table/hash_parts.h"

namespace monolith::core {
namespace {

// The table relies on stripes of similar size, and ids of real systems are far from random.
TEST(HashIdTest, SpreadsPatternsOfIdsOverStripesAndBuckets) {
  constexpr std::size_t kIds = 1 << 16;
  const auto patterns = {
      +[](std::uint64_t i) { return i; },                             // A counter,
      +[](std::uint64_t i) { return i << 48 | 1; },                   // one id of each slot,
      +[](std::uint64_t i) { return (i % 64) << 48 | i / 64; },       // some of 64 slots,
      +[](std::uint64_t i) { return i << 32; },                       // multiples of 2^32,
      +[](std::uint64_t i) { return i * 1'000'003; },                 // of a prime,
      +[](std::uint64_t i) { return i ^ (i << 32); },                 // halves alike,
      +[](std::uint64_t i) { return std::uint64_t{0} - 1 - i * 64; }  // and negative ids.
  };
  int number = 0;
  for (const auto pattern : patterns) {
    SCOPED_TRACE(number++);
    std::vector<double> stripes(kStripes);
    std::vector<double> buckets(512);
    std::vector<double> segments(256);
    for (std::uint64_t i = 0; i < kIds; ++i) {
      const std::uint64_t hash = HashId(static_cast<std::int64_t>(pattern(i)));
      ++stripes[StripeOf(hash)];
      ++buckets[hash & 511];
      ++segments[SegmentNumber(hash, 8)];
    }
    for (const auto* counts : {&stripes, &buckets, &segments}) {
      const double expected = static_cast<double>(kIds) / static_cast<double>(counts->size());
      double chi_square = 0;
      for (const double count : *counts) {
        chi_square += (count - expected) * (count - expected) / expected;
      }
      // Random counts give about counts->size(), with a standard deviation of sqrt(2 * size). More
      // even than random is welcome.
      EXPECT_LT(chi_square, 2.0 * static_cast<double>(counts->size()));
    }
  }
}

// Test vectors of FNV-1a with 64 bits, by its authors.
TEST(HashNameTest, IsFnv1a) {
  EXPECT_EQ(HashName(""), 0xCBF29CE484222325ull);
  EXPECT_EQ(HashName("a"), 0xAF63DC4C8601EC8Cull);
  EXPECT_EQ(HashName("foobar"), 0x85944171F73967E8ull);
  EXPECT_NE(HashName(std::string_view("a\0", 2)), HashName("a"));
}

TEST(HashIdTest, DifferentIdsHaveDifferentHashes) {
  std::mt19937_64 random(2);
  std::unordered_set<std::uint64_t> hashes;
  std::unordered_set<std::int64_t> ids = {0, -1, std::numeric_limits<std::int64_t>::min(),
                                          std::numeric_limits<std::int64_t>::max()};
  for (int i = 0; i < 100'000; ++i) {
    ids.insert(i);
    ids.insert(static_cast<std::int64_t>(random()));
  }
  for (const std::int64_t id : ids) hashes.insert(HashId(id));
  EXPECT_EQ(hashes.size(), ids.size());
}

TEST(HashIdTest, ItsInverseGivesTheIdBack) {
  std::mt19937_64 random(7);
  std::vector<std::int64_t> ids = {0, 1, -1, INT64_MIN, INT64_MAX};
  for (int i = 0; i < 10000; ++i) ids.push_back(static_cast<std::int64_t>(random()));
  for (const std::int64_t id : ids) EXPECT_EQ(IdOfHash(HashId(id)), id);
}

// The part of a hash that a function looks at: which single bits change what it gives.
template <typename Part>
std::uint64_t BitsThatCount(const Part& part) {
  // Not all zeros: a tag of zeros and one of ones are the same.
  constexpr std::uint64_t kBackground = 0x5555555555555555;
  std::uint64_t bits = 0;
  for (int i = 0; i < kHashBits; ++i) {
    const std::uint64_t bit = std::uint64_t{1} << i;
    if (part(kBackground) != part(kBackground ^ bit)) bits |= bit;
  }
  return bits;
}

TEST(HashPartsTest, NoBitServesTwiceAndNoneIsLeftOut) {
  const std::uint64_t stripe = BitsThatCount(StripeOf);
  const std::uint64_t tag = BitsThatCount(TagOf);
  const std::uint64_t segment =
      BitsThatCount([](std::uint64_t hash) { return SegmentNumber(hash, kSegmentBits); });
  const std::uint64_t bucket = (std::uint64_t{1} << kBucketBits) - 1;
  EXPECT_EQ(stripe, 0xFC00000000000000u);
  EXPECT_EQ(tag, 0x03FC000000000000u);
  EXPECT_EQ(segment, 0x0003FFFFFC000000u);
  EXPECT_EQ(bucket, 0x0000000003FFFFFFu);
}

TEST(HashPartsTest, SegmentsAreNumberedByTheFirstOfTheirBits) {
  std::mt19937_64 random(11);
  for (int i = 0; i < 1000; ++i) {
    const std::uint64_t hash = random();
    EXPECT_EQ(SegmentNumber(hash, 0), 0u);
    for (std::uint32_t depth = 0; depth < kSegmentBits; ++depth) {
      const std::size_t upper_half = (hash & SplitBit(depth)) != 0 ? 1 : 0;
      ASSERT_EQ(SegmentNumber(hash, depth + 1), 2 * SegmentNumber(hash, depth) + upper_half);
    }
  }
}

}  // namespace
}  // namespace monolith::core
