// From the hash of an id to the numbers of rows that may hold it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "core/table/hash_parts.h"

namespace monolith::core {

// One cache line: twelve one-byte tags that are compared at once, and twelve row numbers. Ids are
// not here; they stand in front of their rows, where a hit needs to go anyway.
struct alignas(64) IndexBucket {
  static constexpr int kSlots = 12;
  static constexpr std::uint32_t kAllSlots = (1u << kSlots) - 1;

  std::uint8_t tags[kSlots];  // 0: free.
  // How many rows wanted a place here, found none and went on; saturates, then never falls.
  std::uint8_t passed_by;
  std::uint8_t unused[3];
  std::uint32_t rows[kSlots];

  // Bit i is set when slot i carries `tag`.
  [[nodiscard]] std::uint32_t Match(std::uint8_t tag) const {
#if defined(__SSE2__)
    const __m128i line = _mm_load_si128(reinterpret_cast<const __m128i*>(tags));
    const __m128i equal = _mm_cmpeq_epi8(line, _mm_set1_epi8(static_cast<char>(tag)));
    return static_cast<std::uint32_t>(_mm_movemask_epi8(equal)) & kAllSlots;
#else
    std::uint32_t bits = 0;
    for (int i = 0; i < kSlots; ++i) bits |= static_cast<std::uint32_t>(tags[i] == tag) << i;
    return bits;
#endif
  }
};
static_assert(sizeof(IndexBucket) == 64);

// Arrays of buckets for all indexes of one table. Full-size ones are cut from huge pages and
// reused; smaller ones, which only young segments have, come from the heap. Thread-safe.
class BucketPool {
 public:
  // A segment of an index grows to this many buckets, then splits: 64 KiB, at most 10240 rows, so a
  // split takes below a millisecond, and the directory of ten million rows stays in the cache.
  static constexpr std::uint32_t kMaxBuckets = 1024;
  static_assert(kMaxBuckets <= 1u << kBucketBits);

  BucketPool() = default;
  ~BucketPool();
  BucketPool(const BucketPool&) = delete;
  BucketPool& operator=(const BucketPool&) = delete;

  [[nodiscard]] IndexBucket* Allocate(std::uint32_t num_buckets);  // Zeroed.
  void Free(IndexBucket* buckets, std::uint32_t num_buckets);
  [[nodiscard]] std::size_t MemoryBytes() const;

  // Numbers the segments of all the indexes; no two of them grow alike.
  [[nodiscard]] std::uint32_t NextSegmentNumber() {
    return segments_.fetch_add(1, std::memory_order_relaxed);
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::byte*> regions_;
  std::vector<IndexBucket*> free_;  // Full-size arrays.
  std::byte* next_ = nullptr;
  std::byte* end_ = nullptr;
  std::size_t heap_bytes_ = 0;
  std::atomic<std::uint32_t> segments_{0};
};

// An extendible hash index. It grows by splitting one small segment at a time, so an insert never
// waits for more than a few thousand entries to move, however large the index is.
//
// Not thread-safe: a stripe of the table owns one and locks around it. Row numbers stay valid
// whatever the index does.
class RowIndex {
 public:
  // Answers the hash of the id that stands in front of `row`; asked while a segment splits.
  class HashOfRow {
   public:
    virtual ~HashOfRow() = default;
    virtual std::uint64_t operator()(std::uint32_t row) const = 0;
    // Called some rows ahead of the question, to bring the row's memory closer.
    virtual void Prefetch(std::uint32_t row) const = 0;
  };

  explicit RowIndex(BucketPool& pool);  // `pool` outlives the index.
  ~RowIndex();
  RowIndex(const RowIndex&) = delete;
  RowIndex& operator=(const RowIndex&) = delete;

  // The bucket in which a search for `hash` starts.
  [[nodiscard]] const IndexBucket* Home(std::uint64_t hash) const {
    const BucketArray& array = arrays_[DirectoryPosition(hash)];
    return &array.buckets[hash & array.mask];
  }

  // Where it goes on.
  [[nodiscard]] const IndexBucket* Second(std::uint64_t hash) const {
    const BucketArray& array = arrays_[DirectoryPosition(hash)];
    return &array.buckets[(hash + Step(TagOf(hash))) & array.mask];
  }

  // Calls `is_it(row)` for rows whose tag fits, until it answers true; returns that row or kNoRow.
  template <typename IsIt>
  [[nodiscard]] std::uint32_t Find(std::uint64_t hash, IsIt&& is_it) const {
    const BucketArray& array = arrays_[DirectoryPosition(hash)];
    const std::uint8_t tag = TagOf(hash);
    std::uint64_t at = hash;
    for (std::uint64_t probes = 0; probes <= array.mask; ++probes) {
      const IndexBucket& bucket = array.buckets[at & array.mask];
      for (std::uint32_t bits = bucket.Match(tag); bits != 0; bits &= bits - 1) {
        const std::uint32_t row = bucket.rows[__builtin_ctz(bits)];
        if (is_it(row)) return row;
      }
      if (bucket.passed_by == 0) break;
      at += Step(tag);
    }
    return kNoRow;
  }

  // Adds a row that is not in the index.
  void Insert(std::uint64_t hash, std::uint32_t row, const HashOfRow& hash_of_row);

  // Removes a row that is in the index.
  void Erase(std::uint64_t hash, std::uint32_t row);

  void Clear();

  // On an empty index: grows to what it would be with `rows` rows, so that filling up to there
  // moves next to none.
  void Reserve(std::size_t rows, const HashOfRow& hash_of_row);

  [[nodiscard]] std::size_t size() const { return size_; }
  // Without the buckets, which the pool counts.
  [[nodiscard]] std::size_t MemoryBytes() const;

  static constexpr std::uint32_t kNoRow = 0xFFFFFFFFu;

 private:
  struct Segment {
    IndexBucket* buckets;
    std::uint32_t bucket_mask;
    std::uint32_t size;
    std::uint32_t limit;  // Grows when `size` gets there.
    std::uint32_t depth;  // How many bits of the hash all entries share.
  };

  // What a search needs of the segment at the same place of the directory, one load away.
  struct BucketArray {
    const IndexBucket* buckets;
    std::uint64_t mask;
  };

  [[nodiscard]] static std::uint64_t Step(std::uint8_t tag) { return 2 * std::uint64_t{tag} + 1; }
  [[nodiscard]] std::size_t DirectoryPosition(std::uint64_t hash) const {
    return SegmentNumber(hash, depth_);
  }

  static void Place(Segment& segment, std::uint64_t hash, std::uint32_t row);
  void Grow(std::size_t position, const HashOfRow& hash_of_row);
  void GrowBuckets(std::size_t position, const HashOfRow& hash_of_row);
  void FreeSegments();
  void ShowArray(std::size_t first, std::size_t count);
  void Split(std::size_t position, const HashOfRow& hash_of_row);
  [[nodiscard]] Segment NewSegment(std::uint32_t num_buckets, std::uint32_t depth);

  // First what a search needs.
  std::uint32_t depth_ = 0;
  std::vector<BucketArray> arrays_;  // Parallel to directory_.
  std::size_t size_ = 0;
  std::vector<Segment*> directory_;  // 2^depth_ of them; a segment may stand at several places.
  std::vector<std::unique_ptr<Segment>> segments_;
  BucketPool& pool_;
};

}  // namespace monolith::core
