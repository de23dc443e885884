#include "core/table/row_index.h"

#include <cmath>
#include <cstring>
#include <new>
#include <stdexcept>
#include <utility>

#include "core/system/huge_memory.h"

namespace monolith::core {
namespace {

constexpr std::uint32_t kMaxBuckets = BucketPool::kMaxBuckets;
constexpr std::size_t kFullArrayBytes = kMaxBuckets * sizeof(IndexBucket);
// Ten of twelve: beyond that, too many entries would stand outside their home bucket.
constexpr std::uint32_t kRowsPerBucket = 10;
constexpr std::uint32_t kMaxDepth = kSegmentBits;

// Ids spread evenly, so segments with one limit would all grow within the same few batches, in all
// stripes of a table. They therefore grow at limits spread over an octave: between half and all of
// what fits.
std::uint32_t LimitOf(std::uint32_t num_buckets, std::uint32_t segment_number) {
  const std::uint32_t fits = num_buckets * kRowsPerBucket;
  // Golden ratio: any run of numbers is spread evenly.
  const double phase = std::fmod(segment_number * 0.6180339887498949, 1.0);
  return static_cast<std::uint32_t>(fits * std::exp2(-phase));
}

}  // namespace

BucketPool::~BucketPool() {
  for (std::byte* region : regions_) UnmapHugeMemory(region, kHugePageBytes);
}

IndexBucket* BucketPool::Allocate(std::uint32_t num_buckets) {
  const std::size_t bytes = num_buckets * sizeof(IndexBucket);
  const std::lock_guard<std::mutex> lock(mutex_);
  if (num_buckets < kMaxBuckets) {
    void* memory = ::operator new(bytes, std::align_val_t{alignof(IndexBucket)});
    heap_bytes_ += bytes;
    return static_cast<IndexBucket*>(std::memset(memory, 0, bytes));
  }
  if (!free_.empty()) {
    IndexBucket* buckets = free_.back();
    free_.pop_back();
    std::memset(static_cast<void*>(buckets), 0, bytes);
    return buckets;
  }
  if (next_ == end_) {
    regions_.reserve(regions_.size() + 1);
    next_ = MapHugeMemory(kHugePageBytes, 0);
    end_ = next_ + kHugePageBytes;
    regions_.push_back(next_);
  }
  auto* buckets = reinterpret_cast<IndexBucket*>(next_);
  next_ += kFullArrayBytes;
  return buckets;
}

void BucketPool::Free(IndexBucket* buckets, std::uint32_t num_buckets) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (num_buckets == kMaxBuckets) {
    free_.push_back(buckets);
    return;
  }
  heap_bytes_ -= num_buckets * sizeof(IndexBucket);
  ::operator delete(buckets, std::align_val_t{alignof(IndexBucket)});
}

std::size_t BucketPool::MemoryBytes() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return heap_bytes_ + regions_.size() * kHugePageBytes;
}

RowIndex::RowIndex(BucketPool& pool) : pool_(pool) { Clear(); }

RowIndex::~RowIndex() { FreeSegments(); }

void RowIndex::FreeSegments() {
  for (const auto& segment : segments_) pool_.Free(segment->buckets, segment->bucket_mask + 1);
  segments_.clear();
}

void RowIndex::Clear() {
  FreeSegments();
  depth_ = 0;
  size_ = 0;
  segments_.push_back(std::make_unique<Segment>(NewSegment(1, 0)));
  directory_.assign(1, segments_.back().get());
  arrays_.resize(1);
  ShowArray(0, 1);
}

RowIndex::Segment RowIndex::NewSegment(std::uint32_t num_buckets, std::uint32_t depth) {
  return {pool_.Allocate(num_buckets), num_buckets - 1, 0,
          LimitOf(num_buckets, pool_.NextSegmentNumber()), depth};
}

void RowIndex::Place(Segment& segment, std::uint64_t hash, std::uint32_t row) {
  const std::uint8_t tag = TagOf(hash);
  for (std::uint64_t at = hash;; at += Step(tag)) {
    IndexBucket& bucket = segment.buckets[at & segment.bucket_mask];
    const std::uint32_t free = bucket.Match(0);
    if (free != 0) {
      const int slot = __builtin_ctz(free);
      bucket.tags[slot] = tag;
      bucket.rows[slot] = row;
      ++segment.size;
      return;
    }
    if (bucket.passed_by != 255) ++bucket.passed_by;
  }
}

void RowIndex::Insert(std::uint64_t hash, std::uint32_t row, const HashOfRow& hash_of_row) {
  // A split may put all entries on one side, hence the loop.
  std::size_t position = DirectoryPosition(hash);
  while (directory_[position]->size >= directory_[position]->limit) {
    Grow(position, hash_of_row);
    position = DirectoryPosition(hash);
  }
  Place(*directory_[position], hash, row);
  ++size_;
}

void RowIndex::Erase(std::uint64_t hash, std::uint32_t row) {
  Segment& segment = *directory_[DirectoryPosition(hash)];
  const std::uint8_t tag = TagOf(hash);
  std::uint64_t at = hash;
  for (std::uint32_t probes = 0; probes <= segment.bucket_mask; ++probes, at += Step(tag)) {
    IndexBucket& bucket = segment.buckets[at & segment.bucket_mask];
    for (std::uint32_t bits = bucket.Match(tag); bits != 0; bits &= bits - 1) {
      const int slot = __builtin_ctz(bits);
      if (bucket.rows[slot] != row) continue;
      bucket.tags[slot] = 0;
      // The buckets on the way no longer send searches on for this row.
      for (std::uint64_t passed = hash; passed != at; passed += Step(tag)) {
        std::uint8_t& count = segment.buckets[passed & segment.bucket_mask].passed_by;
        if (count != 255) --count;
      }
      --segment.size;
      --size_;
      return;
    }
  }
  throw std::logic_error("RowIndex::Erase: the row is not in the index");
}

void RowIndex::Reserve(std::size_t rows, const HashOfRow& hash_of_row) {
  for (std::size_t position = 0; position < directory_.size();) {
    const Segment& segment = *directory_[position];
    const bool can_grow = segment.bucket_mask + 1 < kMaxBuckets || segment.depth < kMaxDepth;
    if (rows >> segment.depth >= segment.limit && can_grow) {
      const std::size_t places = directory_.size();
      Grow(position, hash_of_row);
      position *= directory_.size() / places;  // The directory may have doubled.
    } else {
      position += std::size_t{1} << (depth_ - segment.depth);
    }
  }
}

void RowIndex::Grow(std::size_t position, const HashOfRow& hash_of_row) {
  if (directory_[position]->bucket_mask + 1 < kMaxBuckets) {
    GrowBuckets(position, hash_of_row);
  } else {
    Split(position, hash_of_row);
  }
}

// Brings arrays_ up to date where a segment's buckets changed.
void RowIndex::ShowArray(std::size_t first, std::size_t count) {
  for (std::size_t i = first; i < first + count; ++i) {
    arrays_[i] = {directory_[i]->buckets, directory_[i]->bucket_mask};
  }
}

void RowIndex::GrowBuckets(std::size_t position, const HashOfRow& hash_of_row) {
  Segment& segment = *directory_[position];
  Segment wider = NewSegment((segment.bucket_mask + 1) * 2, segment.depth);
  for (std::uint32_t b = 0; b <= segment.bucket_mask; ++b) {
    const IndexBucket& bucket = segment.buckets[b];
    for (std::uint32_t used = bucket.Match(0) ^ IndexBucket::kAllSlots; used != 0;
         used &= used - 1) {
      const std::uint32_t row = bucket.rows[__builtin_ctz(used)];
      Place(wider, hash_of_row(row), row);
    }
  }
  pool_.Free(segment.buckets, segment.bucket_mask + 1);
  segment = wider;
  const std::size_t run = std::size_t{1} << (depth_ - segment.depth);
  ShowArray(position / run * run, run);
}

void RowIndex::Split(std::size_t position, const HashOfRow& hash_of_row) {
  Segment& segment = *directory_[position];
  if (segment.depth == depth_) {
    if (depth_ == kMaxDepth) throw std::length_error("RowIndex: the index cannot grow further");
    std::vector<Segment*> doubled(directory_.size() * 2);
    for (std::size_t i = 0; i < doubled.size(); ++i) doubled[i] = directory_[i / 2];
    std::vector<BucketArray> doubled_arrays(doubled.size());
    directory_.swap(doubled);
    arrays_.swap(doubled_arrays);
    ShowArray(0, directory_.size());
    ++depth_;
    position *= 2;
  }
  const std::uint64_t bit = SplitBit(segment.depth);

  // Whatever may run out of memory comes before the first change: the index stays whole then.
  std::vector<std::uint32_t> rows;
  rows.reserve(segment.size);
  for (std::uint32_t b = 0; b <= segment.bucket_mask; ++b) {
    const IndexBucket& bucket = segment.buckets[b];
    for (std::uint32_t used = bucket.Match(0) ^ IndexBucket::kAllSlots; used != 0;
         used &= used - 1) {
      rows.push_back(bucket.rows[__builtin_ctz(used)]);
    }
  }
  segments_.push_back(std::make_unique<Segment>());
  Segment& upper = *segments_.back();
  try {
    upper = NewSegment(kMaxBuckets, segment.depth + 1);
  } catch (...) {
    segments_.pop_back();
    throw;
  }

  ++segment.depth;
  std::memset(static_cast<void*>(segment.buckets), 0, kFullArrayBytes);
  segment.size = 0;
  constexpr std::size_t kAhead = 16;
  for (std::size_t i = 0; i < rows.size() && i < kAhead; ++i) hash_of_row.Prefetch(rows[i]);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (i + kAhead < rows.size()) hash_of_row.Prefetch(rows[i + kAhead]);
    const std::uint64_t hash = hash_of_row(rows[i]);
    Place((hash & bit) != 0 ? upper : segment, hash, rows[i]);
  }

  // The segment stood at a run of places; the upper half of the run is the new one's.
  const std::size_t run = std::size_t{1} << (depth_ - segment.depth);
  const std::size_t first = position / (2 * run) * (2 * run);
  for (std::size_t i = 0; i < run; ++i) directory_[first + run + i] = &upper;
  ShowArray(first + run, run);
}

std::size_t RowIndex::MemoryBytes() const {
  return directory_.capacity() * (sizeof(Segment*) + sizeof(BucketArray)) +
         segments_.size() * sizeof(Segment);
}

}  // namespace monolith::core
