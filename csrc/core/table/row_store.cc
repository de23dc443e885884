#include "core/table/row_store.h"

#include <cstdlib>
#include <new>
#include <stdexcept>

#include "core/system/huge_memory.h"

namespace monolith::core {
namespace {

// Chunks are large so that the directory stays small; only touched pages cost memory.
constexpr std::uint32_t kMaxChunkShift = 18;
constexpr std::size_t kMaxChunkBytes = std::size_t{256} << 20;
// A table below this size stays on small pages: many models have hundreds of small tables.
constexpr std::size_t kSmallPagesBytes = std::size_t{4} << 20;

}  // namespace

RowStore::RowStore(std::size_t row_bytes)
    : stride_((sizeof(RowHeader) + row_bytes + 7) / 8 * 8), chunk_shift_(kMaxChunkShift) {
  while (chunk_shift_ > 4 && (stride_ << chunk_shift_) > kMaxChunkBytes) --chunk_shift_;
  chunk_mask_ = (1u << chunk_shift_) - 1;
  // calloc, because the system hands out untouched zero pages for it: an empty table's directory
  // costs next to nothing.
  chunks_ = static_cast<ChunkPointer*>(std::calloc(num_chunks(), sizeof(ChunkPointer)));
  if (chunks_ == nullptr) throw std::bad_alloc();
}

RowStore::~RowStore() {
  Clear();
  std::free(chunks_);
}

std::uint32_t RowStore::AllocateBlock(std::uint8_t owner) {
  const std::lock_guard<std::mutex> lock(allocate_mutex_);
  const std::uint64_t first = num_rows_.load(std::memory_order_relaxed);
  // The last block is never handed out: its numbers include kNoRow.
  if (first + 2 * kBlockRows > (std::uint64_t{1} << 32)) {
    throw std::length_error("A table holds at most 2^32 rows; spread it over more servers.");
  }
  const auto row = static_cast<std::uint32_t>(first);
  ChunkPointer& chunk = chunks_[row >> chunk_shift_];
  if (chunk.load(std::memory_order_relaxed) == nullptr) {
    const std::size_t small = row == 0 ? kSmallPagesBytes : 0;
    chunk.store(MapHugeMemory(chunk_bytes(), small), std::memory_order_release);
  }
  std::byte* memory = chunk.load(std::memory_order_relaxed);
  memory[owners_offset() + (row & chunk_mask_) / kBlockRows] = std::byte{owner};
  num_rows_.store(first + kBlockRows, std::memory_order_release);
  return row;
}

void RowStore::Clear() {
  const std::uint64_t used = (num_rows() + chunk_mask_) >> chunk_shift_;
  for (std::uint64_t i = 0; i < used; ++i) {
    UnmapHugeMemory(chunks_[i].exchange(nullptr, std::memory_order_relaxed), chunk_bytes());
  }
  num_rows_.store(0, std::memory_order_release);
}

std::uint8_t RowStore::OwnerOfBlock(std::uint32_t first_row) const {
  const std::byte* memory = chunks_[first_row >> chunk_shift_].load(std::memory_order_acquire);
  return static_cast<std::uint8_t>(
      memory[owners_offset() + (first_row & chunk_mask_) / kBlockRows]);
}

std::size_t RowStore::MemoryBytes() const { return num_rows() * stride_; }

}  // namespace monolith::core
