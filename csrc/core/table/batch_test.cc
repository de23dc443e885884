#include "core/table/batch.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <stdexcept>
#include <unordered_set>
#include <vector>

#include "core/table/hash.h"

namespace monolith::core {
namespace {

using Ids = std::vector<std::int64_t>;

// Every id stands once, with its hash, in its stripe, and in the caller's order there.
void ExpectOrdered(const Batch& batch, const Ids& ids) {
  ASSERT_EQ(batch.start(0), 0u);
  ASSERT_EQ(batch.start(kStripes), ids.size());
  const Batch::Entry* const entries = batch.entries();
  for (std::size_t stripe = 0; stripe < kStripes; ++stripe) {
    ASSERT_LE(batch.start(stripe), batch.start(stripe + 1));
    for (std::size_t i = batch.start(stripe); i < batch.start(stripe + 1); ++i) {
      ASSERT_LT(entries[i].position, ids.size());
      EXPECT_EQ(entries[i].hash, HashId(ids[entries[i].position]));
      EXPECT_EQ(StripeOf(entries[i].hash), stripe);
      if (i > batch.start(stripe)) {
        // Rising positions: in order, and none twice.
        EXPECT_LT(entries[i - 1].position, entries[i].position);
      }
    }
  }
}

Ids RandomIds(std::size_t n, std::mt19937_64& random) {
  Ids ids(n);
  for (auto& id : ids) id = static_cast<std::int64_t>(random() % 1000);
  return ids;
}

TEST(BatchTest, EmptyBatchHasEmptyStripes) {
  Batch batch;
  batch.Order(nullptr, 0);
  ExpectOrdered(batch, {});
}

TEST(BatchTest, OneId) {
  const Ids ids = {-1};
  Batch batch;
  batch.Order(ids.data(), ids.size());
  ExpectOrdered(batch, ids);
}

TEST(BatchTest, DuplicatesKeepTheirOrder) {
  const Ids ids = {5, 7, 5, 5, 7, 0, 5};
  Batch batch;
  batch.Order(ids.data(), ids.size());
  ExpectOrdered(batch, ids);
  std::vector<std::uint32_t> positions_of_5;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const Batch::Entry& entry = batch.entries()[i];
    if (entry.hash == HashId(5)) positions_of_5.push_back(entry.position);
  }
  EXPECT_EQ(positions_of_5, (std::vector<std::uint32_t>{0, 2, 3, 6}));
}

TEST(BatchTest, OneIdManyTimesFillsOneStripe) {
  const Ids ids(1000, 123);
  Batch batch;
  batch.Order(ids.data(), ids.size());
  ExpectOrdered(batch, ids);
  const std::size_t stripe = StripeOf(HashId(123));
  EXPECT_EQ(batch.start(stripe + 1) - batch.start(stripe), 1000u);
}

TEST(BatchTest, IsReusedForLargerAndSmallerBatches) {
  std::mt19937_64 random(1);
  Batch batch;
  for (const std::size_t n : {100u, 10'000u, 3u, 0u, 5000u}) {
    Ids ids(n);
    for (auto& id : ids) id = static_cast<std::int64_t>(random());
    batch.Order(ids.data(), ids.size());
    ExpectOrdered(batch, ids);
  }
}

TEST(BatchTest, MoreIdsThanPositionsCanNumberAreRefused) {
  Batch batch;
  EXPECT_THROW(batch.Order(nullptr, std::size_t{1} << 32), std::length_error);
  EXPECT_THROW(batch.Reserve(std::size_t{1} << 32), std::length_error);
}

TEST(BatchTest, PartsInAnyOrderAreOrderedAsOneBatch) {
  std::mt19937_64 random(3);
  Batch batch;
  for (const std::size_t n : {0u, 1u, 4096u, 4097u, 500'000u, 20'000u}) {
    SCOPED_TRACE(n);
    const Ids ids = RandomIds(n, random);
    batch.Reserve(n);
    ASSERT_GE(batch.num_parts(), n > 4096 ? 2u : 1u);
    ASSERT_LE(batch.num_parts(), 64u);
    std::vector<std::size_t> parts(batch.num_parts());
    std::iota(parts.begin(), parts.end(), 0);
    std::shuffle(parts.begin(), parts.end(), random);
    for (const std::size_t part : parts) batch.Count(part, ids.data(), n);
    std::shuffle(parts.begin(), parts.end(), random);
    for (const std::size_t part : parts) batch.Place(part, ids.data(), n);
    ExpectOrdered(batch, ids);
  }
}

// The table counts the ids of one slice in the batch whose last slice is still being read.
TEST(BatchTest, CountingLeavesAloneWhatIsPlaced) {
  std::mt19937_64 random(4);
  const Ids first = RandomIds(10'000, random), second = RandomIds(5000, random);
  Batch batch;
  batch.Reserve(first.size());
  const auto count = [&](const Ids& ids) {
    for (std::size_t p = 0; p < batch.num_parts(); ++p) batch.Count(p, ids.data(), ids.size());
  };
  const auto place = [&](const Ids& ids) {
    for (std::size_t p = 0; p < batch.num_parts(); ++p) batch.Place(p, ids.data(), ids.size());
  };
  count(first);
  place(first);
  count(second);
  ExpectOrdered(batch, first);
  place(second);  // Shorter than the room: the last part has none.
  ExpectOrdered(batch, second);
}

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
      ++segments[(hash >> 42) & 255];
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

}  // namespace
}  // namespace monolith::core
