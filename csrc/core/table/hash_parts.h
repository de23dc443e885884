// Which bits of an id's hash a table uses for what.
//
//   63      58 57      50 49           26 25            0
//  +----------+----------+---------------+---------------+
//  |  stripe  |   tag    |    segment    |    bucket     |
//  +----------+----------+---------------+---------------+
//
// No bit serves twice, so ids that agree in one part are as mixed as ever in the others.
#pragma once

#include <cstddef>
#include <cstdint>

namespace monolith::core {

inline constexpr int kHashBits = 64;
inline constexpr int kStripeBits = 6;    // A table is cut into stripes, each with its own lock.
inline constexpr int kTagBits = 8;       // What a bucket keeps of an id, to pass others over.
inline constexpr int kSegmentBits = 24;  // Of an index; it uses as many as it has grown to need.
inline constexpr int kBucketBits = kHashBits - kStripeBits - kTagBits - kSegmentBits;

inline constexpr std::size_t kStripes = std::size_t{1} << kStripeBits;

[[nodiscard]] inline std::size_t StripeOf(std::uint64_t hash) {
  return static_cast<std::size_t>(hash >> (kHashBits - kStripeBits));
}

// Never 0, which marks a free place.
[[nodiscard]] inline std::uint8_t TagOf(std::uint64_t hash) {
  static_assert(kTagBits == 8);
  const auto tag = static_cast<std::uint8_t>(hash >> (kSegmentBits + kBucketBits));
  return tag == 0 ? 255 : tag;
}

// The first `depth` of the segment's bits, from the top: where a directory with 2^depth places
// holds the segment.
[[nodiscard]] inline std::size_t SegmentNumber(std::uint64_t hash, std::uint32_t depth) {
  const std::uint64_t segment = (hash << (kStripeBits + kTagBits)) >> (kHashBits - kSegmentBits);
  return static_cast<std::size_t>(segment >> (kSegmentBits - depth));
}

// The bit that tells the halves of a segment apart whose ids share the first `depth` bits.
[[nodiscard]] inline std::uint64_t SplitBit(std::uint32_t depth) {
  return std::uint64_t{1} << (kBucketBits + kSegmentBits - 1 - depth);
}

// Buckets are chosen by the last bits, as a mask cuts them off.
static_assert(kBucketBits == 26);

}  // namespace monolith::core
