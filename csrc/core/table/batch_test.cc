#include "core/table/batch.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <stdexcept>
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

}  // namespace
}  // namespace monolith::core
