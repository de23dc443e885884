#include "core/system/huge_memory.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <limits>
#include <new>
#include <vector>

namespace monolith::core {
namespace {

// Address space of this process.
std::size_t MappedBytes() {
  std::size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

TEST(HugeMemoryTest, IsZeroedAlignedAndWritableToTheLastByte) {
  for (const std::size_t bytes :
       {std::size_t{1}, std::size_t{4096}, kHugePageBytes, 3 * kHugePageBytes + 5}) {
    for (const std::size_t small_prefix : {std::size_t{0}, kHugePageBytes, 8 * kHugePageBytes}) {
      std::byte* memory = MapHugeMemory(bytes, small_prefix);
      ASSERT_NE(memory, nullptr);
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory) % kHugePageBytes, 0u);
      EXPECT_TRUE(
          std::all_of(memory, memory + bytes, [](std::byte b) { return b == std::byte{0}; }));
      std::memset(memory, 0xAB, bytes);
      EXPECT_EQ(memory[bytes - 1], std::byte{0xAB});
      UnmapHugeMemory(memory, bytes);
    }
  }
}

TEST(HugeMemoryTest, RegionsDoNotOverlap) {
  std::vector<std::byte*> regions;
  for (int i = 0; i < 20; ++i) {
    regions.push_back(MapHugeMemory(100'000, 0));
    std::memset(regions.back(), i, 100'000);
  }
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(regions[i][0], static_cast<std::byte>(i));
    EXPECT_EQ(regions[i][99'999], static_cast<std::byte>(i));
    UnmapHugeMemory(regions[i], 100'000);
  }
}

TEST(HugeMemoryTest, UnmappingGivesBackAllAddressSpaceWhateverTheSize) {
  for (const std::size_t bytes : {std::size_t{100}, std::size_t{4096}, kHugePageBytes + 12'345}) {
    const std::size_t before = MappedBytes();
    for (int i = 0; i < 100; ++i) UnmapHugeMemory(MapHugeMemory(bytes, 0), bytes);
    EXPECT_LT(MappedBytes(), before + (std::size_t{20} << 20)) << "regions of " << bytes;
  }
}

TEST(HugeMemoryTest, MapsNoMoreThanAskedFor) {
  const std::size_t before = MappedBytes();
  std::byte* const memory = MapHugeMemory(10'000, 0);
  // 10'000 bytes are three pages; a sanitizer maps a little of its own.
  EXPECT_LT(MappedBytes(), before + (std::size_t{1} << 20));
  UnmapHugeMemory(memory, 10'000);
}

TEST(HugeMemoryTest, CostsMemoryOnlyWhereItIsTouched) {
  constexpr std::size_t kBytes = 64 * kHugePageBytes;
  std::byte* const memory = MapHugeMemory(kBytes, 0);
  memory[kBytes / 2] = std::byte{1};
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  std::vector<unsigned char> resident(kBytes / page);
  ASSERT_EQ(mincore(memory, kBytes, resident.data()), 0);
  const auto pages = std::count_if(resident.begin(), resident.end(),
                                   [](unsigned char state) { return (state & 1) != 0; });
  EXPECT_GE(pages, 1);
  EXPECT_LE(static_cast<std::size_t>(pages) * page, kHugePageBytes);
  UnmapHugeMemory(memory, kBytes);
}

TEST(HugeMemoryTest, ASizeThatCannotBeHadIsBadAlloc) {
  constexpr std::size_t kMax = std::numeric_limits<std::size_t>::max();
  for (const std::size_t bytes : {kMax / 2, kMax - kHugePageBytes, kMax - 1, kMax}) {
    EXPECT_THROW((void)MapHugeMemory(bytes, 0), std::bad_alloc) << bytes;
  }
}

}  // namespace
}  // namespace monolith::core
