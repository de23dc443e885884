#include "core/table/row_store.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <set>
#include <thread>
#include <vector>

#include "core/testing/tables.h"

namespace monolith::core {
namespace {

using testing::RunThreads;

constexpr std::uint32_t kBlock = RowStore::kBlockRows;

TEST(RowStoreTest, StrideHoldsHeaderAndRowAndKeepsRowsAligned) {
  for (const std::size_t row_bytes : {0u, 4u, 8u, 60u, 64u, 128u, 132u}) {
    const RowStore store(row_bytes);
    EXPECT_GE(store.stride(), sizeof(RowHeader) + row_bytes);
    EXPECT_LT(store.stride(), sizeof(RowHeader) + row_bytes + 8);
    EXPECT_EQ(store.stride() % 8, 0u);
  }
}

TEST(RowStoreTest, BlocksAreConsecutiveZeroedAndNameTheirOwner) {
  RowStore store(/*row_bytes=*/20);
  EXPECT_EQ(store.num_rows(), 0u);
  for (std::uint32_t block = 0; block < 100; ++block) {
    const auto owner = static_cast<std::uint8_t>(block * 37);
    const std::uint32_t first = store.AllocateBlock(owner);
    EXPECT_EQ(first, block * kBlock);
    EXPECT_EQ(store.num_rows(), first + kBlock);
    for (std::uint32_t row = first; row < first + kBlock; ++row) {
      const RowHeader* header = store.Header(row);
      EXPECT_EQ(header->hash, 0u);
      EXPECT_EQ(header->live, 0u);
      EXPECT_EQ(header->last_update_sec, 0u);
      EXPECT_TRUE(std::all_of(store.Data(row), store.Data(row) + 20,
                              [](std::byte b) { return b == std::byte{0}; }));
    }
  }
  for (std::uint32_t block = 0; block < 100; ++block) {
    EXPECT_EQ(store.OwnerOfBlock(block * kBlock), static_cast<std::uint8_t>(block * 37));
  }
  EXPECT_EQ(store.MemoryBytes(), 1600 * store.stride());
}

// Fills `rows` rows to the brim, then looks whether anybody wrote into his neighbour.
void ExpectRowsApart(RowStore& store, std::size_t row_bytes, std::uint32_t rows) {
  while (store.num_rows() < rows) {
    const auto owner = static_cast<std::uint8_t>(store.num_rows() / kBlock % 251);
    (void)store.AllocateBlock(owner);
  }
  for (std::uint32_t row = 0; row < rows; ++row) {
    *store.Header(row) = {std::uint64_t{row} * 3 + 1, row, 1};
    std::memset(store.Data(row), static_cast<int>(row % 253), row_bytes);
  }
  for (std::uint32_t row = 0; row < rows; ++row) {
    ASSERT_EQ(store.Header(row)->hash, std::uint64_t{row} * 3 + 1);
    ASSERT_EQ(store.Header(row)->last_update_sec, row);
    ASSERT_EQ(store.Header(row)->live, 1u);
    ASSERT_EQ(reinterpret_cast<std::uintptr_t>(store.Data(row)) % 8, 0u);
    const auto expected = static_cast<std::byte>(row % 253);
    ASSERT_EQ(store.Data(row)[0], expected);
    ASSERT_EQ(store.Data(row)[row_bytes - 1], expected);
    ASSERT_EQ(store.OwnerOfBlock(row / kBlock * kBlock), row / kBlock % 251);
  }
}

TEST(RowStoreTest, RowsDoNotOverlapAcrossChunks) {
  constexpr std::size_t kRowBytes = 4;
  RowStore store(kRowBytes);
  // A chunk has at most 2^18 rows.
  ExpectRowsApart(store, kRowBytes, (1u << 18) + 2 * kBlock);
}

TEST(RowStoreTest, WideRowsGetSmallerChunks) {
  // 64 rows of 4 MiB are a chunk.
  constexpr std::size_t kRowBytes = (std::size_t{4} << 20) - sizeof(RowHeader);
  RowStore store(kRowBytes);
  for (int block = 0; block < 10; ++block) {
    (void)store.AllocateBlock(static_cast<std::uint8_t>(block));
  }
  // Only some ends are touched, around the bounds of chunks: all of it would be 640 MiB.
  const std::uint32_t touched[] = {0, 1, 62, 63, 64, 65, 127, 128, 159};
  for (const std::uint32_t row : touched) {
    store.Header(row)->hash = row;
    store.Data(row)[kRowBytes - 1] = static_cast<std::byte>(row);
  }
  for (const std::uint32_t row : touched) {
    EXPECT_EQ(store.Header(row)->hash, row);
    EXPECT_EQ(store.Data(row)[kRowBytes - 1], static_cast<std::byte>(row));
    EXPECT_EQ(store.OwnerOfBlock(row / kBlock * kBlock), row / kBlock);
  }
}

TEST(RowStoreTest, RowsStayWhereTheyAreWhileTheStoreGrows) {
  RowStore store(64);
  const RowHeader* const first = store.Header(store.AllocateBlock(1));
  for (int i = 0; i < 40'000; ++i) (void)store.AllocateBlock(2);
  EXPECT_EQ(store.Header(0), first);
  EXPECT_EQ(store.OwnerOfBlock(0), 1);
}

TEST(RowStoreTest, ClearForgetsAllAndStartsAgainWithZeroedRows) {
  constexpr std::size_t kRowBytes = 8;
  RowStore store(kRowBytes);
  store.Clear();  // An empty one, too.
  // Part of a chunk, a whole one, and a little of a second.
  for (const std::uint32_t rows : {kBlock, 1u << 18, (1u << 18) + kBlock}) {
    ExpectRowsApart(store, kRowBytes, rows);
    store.Clear();
    EXPECT_EQ(store.num_rows(), 0u);
    EXPECT_EQ(store.MemoryBytes(), 0u);
    for (std::uint32_t row = 0; row < rows; row += kBlock) {
      ASSERT_EQ(store.AllocateBlock(9), row);
      ASSERT_EQ(store.OwnerOfBlock(row), 9);
      ASSERT_EQ(store.Header(row)->hash, 0u);
      ASSERT_EQ(store.Header(row)->live, 0u);
      ASSERT_EQ(store.Data(row)[0], std::byte{0});
    }
    store.Clear();
  }
}

TEST(RowStoreTest, ThreadsGetDifferentBlocksAndWalkersSeeTheOwners) {
  constexpr int kThreads = 4;
  constexpr int kBlocksEach = 10'000;
  RowStore store(8);
  std::atomic<bool> done{false};
  std::thread walker([&] {
    while (!done) {
      const std::uint64_t end = store.num_rows();
      ASSERT_EQ(end % kBlock, 0u);
      for (std::uint64_t row = 0; row < end; row += kBlock) {
        const std::uint8_t owner = store.OwnerOfBlock(static_cast<std::uint32_t>(row));
        ASSERT_GE(owner, 1);
        ASSERT_LE(owner, kThreads);
      }
    }
  });
  std::vector<std::vector<std::uint32_t>> blocks(kThreads);
  RunThreads(kThreads, [&](int thread) {
    for (int i = 0; i < kBlocksEach; ++i) {
      const std::uint32_t first = store.AllocateBlock(static_cast<std::uint8_t>(thread + 1));
      store.Header(first)->hash = static_cast<std::uint64_t>(thread);
      blocks[thread].push_back(first);
    }
  });
  done = true;
  walker.join();
  std::set<std::uint32_t> all;
  for (int thread = 0; thread < kThreads; ++thread) {
    for (const std::uint32_t first : blocks[thread]) {
      EXPECT_EQ(store.OwnerOfBlock(first), thread + 1);
      EXPECT_EQ(store.Header(first)->hash, static_cast<std::uint64_t>(thread));
      all.insert(first);
    }
  }
  EXPECT_EQ(all.size(), std::size_t{kThreads} * kBlocksEach);
  EXPECT_EQ(store.num_rows(), all.size() * kBlock);
}

}  // namespace
}  // namespace monolith::core
