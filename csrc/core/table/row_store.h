// Rows of one table, in slabs: a row has a number and never moves.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>

namespace monolith::core {

// What stands in front of each row's value and optimizer state.
struct RowHeader {
  std::uint64_t hash;  // Of the row's id, see IdOfHash: what a search compares.
  std::uint32_t last_update_sec;
  // 0 when the place is free; 1 while the row belongs to an id, or the last mark that it got.
  std::uint32_t live;
};
static_assert(sizeof(RowHeader) == 16);

// Rows are handed out in blocks of kBlockRows consecutive numbers, each block to one owner (a
// stripe of the table), so that whoever walks the rows in order takes a lock once per block.
//
// AllocateBlock, num_rows and OwnerOfBlock may be called from any thread. Row may be called for
// numbers that AllocateBlock has returned; who may touch the bytes is the owner's business.
class RowStore {
 public:
  static constexpr std::uint32_t kBlockRows = 16;
  static constexpr std::uint32_t kNoRow = 0xFFFFFFFFu;

  explicit RowStore(std::size_t row_bytes);
  ~RowStore();
  RowStore(const RowStore&) = delete;
  RowStore& operator=(const RowStore&) = delete;

  // Returns the first number of a fresh, zeroed block. Throws std::bad_alloc when memory is out and
  // std::length_error beyond 2^32 rows.
  [[nodiscard]] std::uint32_t AllocateBlock(std::uint8_t owner);

  // Forgets all rows and gives their memory back. Nobody may be using the store.
  void Clear();

  [[nodiscard]] RowHeader* Header(std::uint32_t row) const {
    return reinterpret_cast<RowHeader*>(Start(row));
  }
  [[nodiscard]] std::byte* Data(std::uint32_t row) const { return Start(row) + sizeof(RowHeader); }

  // One past the greatest row number handed out; always a multiple of kBlockRows.
  [[nodiscard]] std::uint64_t num_rows() const { return num_rows_.load(std::memory_order_acquire); }
  [[nodiscard]] std::uint8_t OwnerOfBlock(std::uint32_t first_row) const;
  [[nodiscard]] std::size_t stride() const { return stride_; }
  // The power of two that all rows start at a multiple of.
  [[nodiscard]] std::size_t alignment() const { return stride_ & (~stride_ + 1); }
  [[nodiscard]] std::size_t MemoryBytes() const;

 private:
  using ChunkPointer = std::atomic<std::byte*>;

  [[nodiscard]] std::byte* Start(std::uint32_t row) const {
    return chunks_[row >> chunk_shift_].load(std::memory_order_relaxed) +
           static_cast<std::size_t>(row & chunk_mask_) * stride_;
  }
  [[nodiscard]] std::size_t rows_per_chunk() const { return std::size_t{chunk_mask_} + 1; }
  // A chunk holds its rows, then one byte per block that names the owner.
  [[nodiscard]] std::size_t owners_offset() const { return rows_per_chunk() * stride_; }
  [[nodiscard]] std::size_t chunk_bytes() const {
    return owners_offset() + rows_per_chunk() / kBlockRows;
  }
  [[nodiscard]] std::size_t num_chunks() const { return (std::size_t{1} << 32) >> chunk_shift_; }

  const std::size_t stride_;
  std::uint32_t chunk_shift_ = 0;
  std::uint32_t chunk_mask_ = 0;
  ChunkPointer* chunks_ = nullptr;  // num_chunks() of them, null until used.
  std::mutex allocate_mutex_;
  std::atomic<std::uint64_t> num_rows_{0};
};

}  // namespace monolith::core
