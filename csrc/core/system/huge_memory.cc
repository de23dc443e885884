#include "core/system/huge_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <limits>
#include <new>

namespace monolith::core {

std::byte* MapHugeMemory(std::size_t bytes, std::size_t small_prefix_bytes) {
  if (bytes > std::numeric_limits<std::size_t>::max() / 2) throw std::bad_alloc();
  // Whole pages: what stands behind them is given back, and a page is the least that can be.
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  bytes = (bytes + page - 1) / page * page;
  // Asking for one huge page more leaves room to cut an aligned piece out of the answer.
  const std::size_t mapped = bytes + kHugePageBytes;
  void* answer = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (answer == MAP_FAILED) throw std::bad_alloc();
  const auto start = reinterpret_cast<std::uintptr_t>(answer);
  const std::uintptr_t aligned = (start + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
  if (aligned > start) munmap(answer, aligned - start);
  const std::size_t behind = start + mapped - (aligned + bytes);
  if (behind > 0) munmap(reinterpret_cast<void*>(aligned + bytes), behind);
  if (bytes > small_prefix_bytes) {
    // Only advice: where huge pages are switched off the memory works all the same.
    (void)madvise(reinterpret_cast<void*>(aligned + small_prefix_bytes), bytes - small_prefix_bytes,
                  MADV_HUGEPAGE);
  }
  return reinterpret_cast<std::byte*>(aligned);
}

void UnmapHugeMemory(std::byte* memory, std::size_t bytes) noexcept { munmap(memory, bytes); }

}  // namespace monolith::core
