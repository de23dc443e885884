#include "core/table/row_index.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <new>
#include <random>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/table/batch.h"
#include "core/table/hash.h"

namespace {

// How many allocations succeed before one fails; negative: all do.
std::atomic<long> allocations_left{-1};

void* Allocate(std::size_t bytes, std::size_t alignment) {
  if (allocations_left >= 0 && allocations_left-- == 0) {
    allocations_left = -1;
    throw std::bad_alloc();
  }
  void* memory = nullptr;
  if (posix_memalign(&memory, std::max(alignment, sizeof(void*)), bytes) != 0) {
    throw std::bad_alloc();
  }
  return memory;
}

}  // namespace

// Replaced for this program, so that a test can let memory run out. (The array forms end here too.)
// Not inline: the compiler would see a free without its malloc, and warn.
#define REPLACED __attribute__((noinline))
REPLACED void* operator new(std::size_t bytes) {
  return Allocate(bytes, alignof(std::max_align_t));
}
REPLACED void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return Allocate(bytes, static_cast<std::size_t>(alignment));
}
REPLACED void operator delete(void* memory) noexcept { std::free(memory); }
REPLACED void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
REPLACED void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
REPLACED void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
  std::free(memory);
}

namespace monolith::core {
namespace {

#if defined(MONOLITH_SANITIZED)
constexpr int kManyRows = 200'000;
#else
constexpr int kManyRows = 1'000'000;
#endif

// Where the parts of a hash begin that the index looks at.
constexpr int kSegmentShift = kBucketBits;
constexpr int kTagShift = kSegmentShift + kSegmentBits;

// An index over rows whose hashes a test chooses.
class TestIndex final : public RowIndex::HashOfRow {
 public:
  explicit TestIndex(BucketPool& pool) : index(pool) {}

  std::uint64_t operator()(std::uint32_t row) const override {
    ++moved;
    return hashes[row];
  }
  void Prefetch(std::uint32_t row) const override { EXPECT_LT(row, hashes.size()); }

  std::uint32_t Insert(std::uint64_t hash) {
    hashes.push_back(hash);
    const auto row = static_cast<std::uint32_t>(hashes.size() - 1);
    index.Insert(hash, row, *this);
    return row;
  }

  [[nodiscard]] bool Holds(std::uint32_t row) const {
    return index.Find(hashes[row], [&](std::uint32_t found) { return found == row; }) == row;
  }

  void ExpectHoldsAll(std::size_t from = 0) const {
    for (std::size_t row = from; row < hashes.size(); ++row) {
      ASSERT_TRUE(Holds(static_cast<std::uint32_t>(row))) << "row " << row;
    }
  }

  RowIndex index;
  std::vector<std::uint64_t> hashes;  // By row.
  mutable std::uint64_t moved = 0;    // Rows whose hash was asked for: those that growth moved.
};

class RowIndexTest : public ::testing::Test {
 protected:
  BucketPool pool_;
  TestIndex rows_{pool_};
  std::mt19937_64 random_{1};
};

TEST(IndexBucketTest, MatchesTagsOfItsSlotsOnly) {
  std::mt19937 random(1);
  for (int round = 0; round < 1000; ++round) {
    IndexBucket bucket{};
    for (auto& tag : bucket.tags) tag = static_cast<std::uint8_t>(random() % 4);
    // Bytes behind the tags that look like tags.
    bucket.passed_by = static_cast<std::uint8_t>(random() % 4);
    for (auto& byte : bucket.unused) byte = static_cast<std::uint8_t>(random() % 4);
    for (std::uint8_t tag = 0; tag < 4; ++tag) {
      std::uint32_t expected = 0;
      for (int i = 0; i < IndexBucket::kSlots; ++i) {
        if (bucket.tags[i] == tag) expected |= 1u << i;
      }
      EXPECT_EQ(bucket.Match(tag), expected);
    }
  }
}

TEST(BucketPoolTest, ArraysAreZeroedApartAndReused) {
  BucketPool pool;
  EXPECT_EQ(pool.MemoryBytes(), 0u);
  for (const std::uint32_t size : {1u, 2u, 256u, BucketPool::kMaxBuckets}) {
    std::vector<IndexBucket*> arrays;
    for (int i = 0; i < 100; ++i) {
      IndexBucket* buckets = pool.Allocate(size);
      ASSERT_EQ(reinterpret_cast<std::uintptr_t>(buckets) % 64, 0u);
      for (std::uint32_t b = 0; b < size; ++b) {
        ASSERT_EQ(buckets[b].Match(0), 0xFFFu);
        ASSERT_EQ(buckets[b].passed_by, 0);
        buckets[b].tags[0] = 1;
        buckets[b].passed_by = 7;
        buckets[b].rows[11] = static_cast<std::uint32_t>(i);
      }
      arrays.push_back(buckets);
    }
    EXPECT_GE(pool.MemoryBytes(), 100 * size * sizeof(IndexBucket));
    for (int i = 0; i < 100; ++i) {
      EXPECT_EQ(arrays[i][0].rows[11], static_cast<std::uint32_t>(i));
      EXPECT_EQ(arrays[i][size - 1].rows[11], static_cast<std::uint32_t>(i));
      pool.Free(arrays[i], size);
    }
    const std::size_t memory = pool.MemoryBytes();
    // Zeroed again, although used before, and no more memory.
    for (int i = 0; i < 100; ++i) {
      IndexBucket* buckets = pool.Allocate(size);
      for (std::uint32_t b = 0; b < size; ++b) {
        ASSERT_EQ(buckets[b].Match(0), 0xFFFu);
        ASSERT_EQ(buckets[b].passed_by, 0);
      }
      arrays[i] = buckets;
    }
    if (size == BucketPool::kMaxBuckets) {
      EXPECT_EQ(pool.MemoryBytes(), memory);
    } else {
      EXPECT_EQ(memory, 0u);  // Small ones went back to the heap.
    }
    for (IndexBucket* buckets : arrays) pool.Free(buckets, size);
  }
}

TEST_F(RowIndexTest, EmptyIndexFindsNothing) {
  EXPECT_EQ(rows_.index.size(), 0u);
  int asked = 0;
  const auto row = rows_.index.Find(random_(), [&](std::uint32_t) { return ++asked > 0; });
  EXPECT_EQ(row, RowIndex::kNoRow);
  EXPECT_EQ(asked, 0);
}

TEST_F(RowIndexTest, FindAsksOnlyForRowsWithTheSameTag) {
  for (int i = 0; i < 10'000; ++i) rows_.Insert(random_());
  for (int i = 0; i < 10'000; ++i) {
    const std::uint64_t hash = random_();
    const auto row = rows_.index.Find(hash, [&](std::uint32_t candidate) {
      EXPECT_EQ(TagOf(rows_.hashes[candidate]), TagOf(hash));
      return false;
    });
    EXPECT_EQ(row, RowIndex::kNoRow);
  }
}

TEST_F(RowIndexTest, TagIsNeverTheMarkOfAFreeSlot) {
  for (std::uint64_t tag = 0; tag < 256; ++tag) {
    EXPECT_NE(TagOf(tag << kTagShift), 0);
    rows_.Insert(tag << kTagShift);
  }
  EXPECT_EQ(rows_.index.size(), 256u);
  rows_.ExpectHoldsAll();
}

TEST_F(RowIndexTest, EqualHashesAreToldApartByTheirRows) {
  const std::uint64_t hash = random_();
  for (int i = 0; i < 500; ++i) rows_.Insert(hash);
  rows_.ExpectHoldsAll();
  for (std::uint32_t row = 0; row < 500; row += 2) rows_.index.Erase(hash, row);
  EXPECT_EQ(rows_.index.size(), 250u);
  for (std::uint32_t row = 0; row < 500; ++row) EXPECT_EQ(rows_.Holds(row), row % 2 == 1);
}

TEST_F(RowIndexTest, ErasingWhatIsNotThereIsAnError) {
  const std::uint64_t hash = 7ull << kTagShift | 1;
  rows_.Insert(hash);
  EXPECT_THROW(rows_.index.Erase(hash, 5), std::logic_error);
  EXPECT_THROW(rows_.index.Erase(8ull << kTagShift | 1, 0), std::logic_error);
  EXPECT_EQ(rows_.index.size(), 1u);
}

// Inserts and erases at random and compares with a map. Where the hashes come from decides which
// part of the index is under stress.
struct Pattern {
  std::string name;
  std::function<std::uint64_t(std::mt19937_64&)> hash;
};

class RowIndexModelTest : public ::testing::TestWithParam<Pattern> {};

TEST_P(RowIndexModelTest, AgreesWithAMap) {
  BucketPool pool;
  TestIndex rows(pool);
  std::mt19937_64 random(7);
  std::vector<std::uint32_t> present;
  std::vector<std::uint32_t> erased;
  std::unordered_map<std::uint32_t, std::uint64_t> model;
  // The share of inserts swings, so that the index fills and empties.
  for (int step = 0; step < 40'000; ++step) {
    const bool filling = step / 5000 % 2 == 0;
    if (present.empty() || random() % 100 < (filling ? 80u : 25u)) {
      std::uint32_t row;
      if (!erased.empty() && random() % 4 == 0) {  // An old row under its old hash.
        row = erased.back();
        erased.pop_back();
        rows.index.Insert(rows.hashes[row], row, rows);
      } else {
        row = rows.Insert(GetParam().hash(random));
      }
      present.push_back(row);
      model.emplace(row, rows.hashes[row]);
    } else {
      std::swap(present[random() % present.size()], present.back());
      const std::uint32_t row = present.back();
      present.pop_back();
      erased.push_back(row);
      rows.index.Erase(model.at(row), row);
      model.erase(row);
    }
    if (step % 5000 != 4999) continue;
    ASSERT_EQ(rows.index.size(), model.size());
    for (std::uint32_t row = 0; row < rows.hashes.size(); ++row) {
      ASSERT_EQ(rows.Holds(row), model.count(row) == 1) << "row " << row << " at step " << step;
    }
  }
  for (const std::uint32_t row : present) rows.index.Erase(rows.hashes[row], row);
  EXPECT_EQ(rows.index.size(), 0u);
  for (std::uint32_t row = 0; row < rows.hashes.size(); ++row) ASSERT_FALSE(rows.Holds(row));
}

INSTANTIATE_TEST_SUITE_P(
    Hashes, RowIndexModelTest,
    ::testing::Values(
        Pattern{"Random", [](std::mt19937_64& random) { return random(); }},
        // All start in one bucket with one tag, so they follow one path.
        Pattern{"OneHome",
                [](std::mt19937_64& random) {
                  return (random() & 0xFFFFFF) << kSegmentShift | 42ull << kTagShift;
                }},
        Pattern{"OneTag",
                [](std::mt19937_64& random) { return random() >> 14 | 42ull << kTagShift; }},
        Pattern{"FewBuckets", [](std::mt19937_64& random) { return random() & ~0x1F8ull; }},
        // Differ in the last of the bits that segments are chosen by.
        Pattern{"LateSegmentBits",
                [](std::mt19937_64& random) { return random() & ~(0x3FFFull << 36); }},
        // Dozens of rows share each hash.
        Pattern{"FewHashes",
                [](std::mt19937_64& random) { return HashId(static_cast<int>(random() % 100)); }}),
    [](const auto& info) { return info.param.name; });

TEST_F(RowIndexTest, GrowsThroughManySplits) {
  std::uint64_t most_moved_at_once = 0;
  for (int i = 0; i < kManyRows; ++i) {
    const std::uint64_t before = rows_.moved;
    rows_.Insert(random_());
    most_moved_at_once = std::max(most_moved_at_once, rows_.moved - before);
  }
  EXPECT_EQ(rows_.index.size(), static_cast<std::size_t>(kManyRows));
  rows_.ExpectHoldsAll();
  // An insert waits for one segment at most, however large the index.
  EXPECT_LE(most_moved_at_once, BucketPool::kMaxBuckets * 10u);
  // An entry moves once whenever the index doubles; those that came early have seen all doublings.
  EXPECT_LT(static_cast<double>(rows_.moved), 3.0 * kManyRows);
  // Erase every other row; the rest stays.
  for (std::uint32_t row = 0; row < rows_.hashes.size(); row += 2) {
    rows_.index.Erase(rows_.hashes[row], row);
  }
  for (std::uint32_t row = 0; row < rows_.hashes.size(); ++row) {
    ASSERT_EQ(rows_.Holds(row), row % 2 == 1);
  }
}

TEST_F(RowIndexTest, SplitsAsDeepAsHashesLookAlike) {
  // They share the first 20 of the 24 bits that choose a segment, and more of them come than fit.
  const std::uint64_t shared = random_() & (0xFFFFFull << (kSegmentShift + 4));
  const std::uint64_t differing = ~(0xFFFFFull << (kSegmentShift + 4));
  for (int i = 0; i < 20'000; ++i) rows_.Insert(shared | (random_() & differing));
  rows_.ExpectHoldsAll();
  for (int i = 0; i < 1000; ++i) rows_.Insert(random_());
  rows_.ExpectHoldsAll();
}

TEST_F(RowIndexTest, RefusesMoreHashesThanCanBeToldApartAndStaysWhole) {
  const std::uint64_t segment = ((1ull << kSegmentBits) - 1) << kSegmentShift;
  for (int i = 0; i < 1000; ++i) rows_.Insert(random_());
  bool refused = false;
  while (!refused && rows_.hashes.size() < 40 * BucketPool::kMaxBuckets) {
    try {
      rows_.Insert(random_() | segment);
    } catch (const std::length_error&) {
      rows_.hashes.pop_back();
      refused = true;
    }
  }
  EXPECT_TRUE(refused);
  // Thousands of them found a place.
  EXPECT_GT(rows_.hashes.size(), 3000u);
  EXPECT_EQ(rows_.index.size(), rows_.hashes.size());
  rows_.ExpectHoldsAll();
  // Others still do, and each of them can leave.
  for (int i = 0; i < 1000; ++i) rows_.Insert(random_() & ~(segment / 2));
  rows_.ExpectHoldsAll();
  for (std::uint32_t row = 0; row < rows_.hashes.size(); ++row) {
    rows_.index.Erase(rows_.hashes[row], row);
  }
  EXPECT_EQ(rows_.index.size(), 0u);
}

TEST_F(RowIndexTest, CounterThatSaturatedNeverHidesARow) {
  // One home bucket, one tag: all but twelve pass by it, more than its counter can hold.
  const auto hash = [](std::uint64_t i) { return i << 9 | 5; };
  for (std::uint64_t i = 0; i < 400; ++i) rows_.Insert(hash(i));
  ASSERT_EQ(rows_.index.Home(hash(0))->passed_by, 255);
  rows_.ExpectHoldsAll();
  for (std::uint32_t row = 0; row < 390; ++row) {
    rows_.index.Erase(rows_.hashes[row], row);
    for (std::uint32_t later = row + 1; later < 400; later += 37) ASSERT_TRUE(rows_.Holds(later));
  }
  for (std::uint32_t row = 390; row < 400; ++row) EXPECT_TRUE(rows_.Holds(row));
  EXPECT_EQ(rows_.index.Home(hash(0))->passed_by, 255);
}

TEST_F(RowIndexTest, ErasedRowsLeaveNoTrailBehind) {
  const auto hash = [](std::uint64_t i) { return i << 9 | 5; };
  for (int round = 0; round < 100; ++round) {
    const auto first = static_cast<std::uint32_t>(rows_.hashes.size());
    for (std::uint64_t i = 0; i < 100; ++i) rows_.Insert(hash(i));
    for (std::uint32_t row = first; row < first + 100; ++row) {
      rows_.index.Erase(rows_.hashes[row], row);
    }
    // A search ends in the home bucket again.
    ASSERT_EQ(rows_.index.Home(hash(0))->passed_by, 0);
  }
  EXPECT_EQ(rows_.index.size(), 0u);
}

TEST_F(RowIndexTest, ErasingAndReinsertingDoesNotGrowTheIndex) {
  for (int i = 0; i < 20'000; ++i) rows_.Insert(random_());
  const std::size_t memory = pool_.MemoryBytes();
  const std::uint64_t moved = rows_.moved;
  for (int round = 0; round < 5; ++round) {
    for (std::uint32_t row = 0; row < 20'000; ++row) rows_.index.Erase(rows_.hashes[row], row);
    ASSERT_EQ(rows_.index.size(), 0u);
    for (std::uint32_t row = 0; row < 20'000; ++row) {
      ASSERT_FALSE(rows_.Holds(row));
      rows_.index.Insert(rows_.hashes[row], row, rows_);
    }
  }
  rows_.ExpectHoldsAll();
  EXPECT_EQ(pool_.MemoryBytes(), memory);
  EXPECT_EQ(rows_.moved, moved);
}

TEST_F(RowIndexTest, ClearedIndexIsEmptyAndFillsAgainWithoutMoreMemory) {
  for (int i = 0; i < 100'000; ++i) rows_.Insert(random_());
  const std::size_t memory = pool_.MemoryBytes();
  rows_.index.Clear();
  EXPECT_EQ(rows_.index.size(), 0u);
  for (std::uint32_t row = 0; row < 100'000; row += 100) EXPECT_FALSE(rows_.Holds(row));
  for (std::uint32_t row = 0; row < 100'000; ++row) {
    rows_.index.Insert(rows_.hashes[row], row, rows_);
  }
  rows_.ExpectHoldsAll();
  // Segments get other limits each time, hence a little room.
  EXPECT_LE(pool_.MemoryBytes(), memory + (std::size_t{2} << 20));
}

TEST_F(RowIndexTest, ReservedIndexFillsWithoutMovingMuch) {
  for (const std::size_t reserved : {1u, 10u, 100u, 3000u, 100'000u}) {
    SCOPED_TRACE(reserved);
    TestIndex rows(pool_);
    rows.index.Reserve(reserved, rows);
    EXPECT_EQ(rows.index.size(), 0u);
    EXPECT_EQ(rows.moved, 0u);
    for (std::size_t i = 0; i < reserved; ++i) rows.Insert(random_());
    rows.ExpectHoldsAll();
    // Chance may give a segment more than its share; without the reservation all move several
    // times.
    EXPECT_LE(rows.moved, reserved / 5);
    // Beyond what was reserved it grows as any other.
    for (std::size_t i = 0; i < 4 * reserved; ++i) rows.Insert(random_());
    rows.ExpectHoldsAll();
  }
}

TEST_F(RowIndexTest, RunningOutOfMemoryLeavesTheIndexAsItWas) {
  // Every growth step up to two splits, interrupted at every allocation that it makes.
  int failures = 0;
  while (rows_.hashes.size() < 24 * BucketPool::kMaxBuckets) {
    const std::uint64_t hash = random_();
    const auto row = static_cast<std::uint32_t>(rows_.hashes.size());
    rows_.hashes.push_back(hash);
    for (long succeed = 0;; ++succeed) {
      allocations_left = succeed;
      try {
        rows_.index.Insert(hash, row, rows_);
        allocations_left = -1;
        break;
      } catch (const std::bad_alloc&) {
        ++failures;
        ASSERT_EQ(rows_.index.size(), row);
        ASSERT_FALSE(rows_.Holds(row));
        for (std::uint32_t other = 0; other < row; ++other) ASSERT_TRUE(rows_.Holds(other));
      }
    }
    ASSERT_TRUE(rows_.Holds(row));
  }
  EXPECT_GT(failures, 15);  // Ten times twice the buckets, then splits with several allocations.
  rows_.ExpectHoldsAll();
}

// A batch of new ids reaches all stripes of a table. No batch may find many segments ready to
// split, or the caller waits; counted in rows moved, which cost about as much as an insert each.
TEST(RowIndexGrowthTest, NoBatchOf4096InsertsMovesManyRows) {
  BucketPool pool;
  std::vector<std::unique_ptr<TestIndex>> stripes;
  for (std::size_t s = 0; s < kStripes; ++s) stripes.push_back(std::make_unique<TestIndex>(pool));
  std::mt19937_64 random(3);
  constexpr int kBatch = 4096;
  const int batches = kManyRows / kBatch;
  std::uint64_t moved_before = 0;
  std::uint64_t most_moved = 0;
  for (int batch = 0; batch < batches; ++batch) {
    for (int i = 0; i < kBatch; ++i) {
      const std::uint64_t hash = random();
      stripes[StripeOf(hash)]->Insert(hash);
    }
    std::uint64_t moved = 0;
    for (const auto& stripe : stripes) moved += stripe->moved;
    most_moved = std::max(most_moved, moved - moved_before);
    moved_before = moved;
  }
  // A batch meets between one and two splits on average, of 3700 rows each; chance brings some more
  // together. If the stripes grew in step, there would be up to 64 at once.
  EXPECT_LT(most_moved, 32'000u);
}

}  // namespace
}  // namespace monolith::core
