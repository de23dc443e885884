// Values of a training row in fewer bits than a float has.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/table/table_config.h"

namespace monolith::core {

// Draws for roundings: 32 bits at a time, the same in every run of a thread.
class RoundingRandom {
 public:
  // One number for a whole row: the elements' draws are mixed from it.
  std::uint32_t Next() {
    // Weyl's sequence through the mixer of splitmix64.
    state_ += 0x9E3779B97F4A7C15u;
    std::uint64_t x = state_;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return static_cast<std::uint32_t>((x ^ (x >> 31)) >> 32);
  }

 private:
  std::uint64_t state_ = 0;
};

// The values of one segment, as float16 or as 8-bit steps.
//
// kFloat16: IEEE half precision. Finite values beyond its range become +-65504.
// kInt8: one byte for the exponent e, then a byte q in [-127, 127] for each value, which is q *
// 2^e. e is the least one that has room for the greatest value, so a step is between 1/127 and 1/63
// of that. Since steps are powers of two, a step that grows or shrinks keeps what was exact before,
// and encoding what was decoded gives the same bytes again. A segment with an infinite value or NaN
// is NaN as a whole.
//
// All bytes zero are zeros. Bytes need no alignment. Immutable: may be called from any thread.
class CompactValues {
 public:
  // Throws std::invalid_argument if the storage is float32, which is not compact, or unknown.
  CompactValues(EntryConfig::Storage storage, std::size_t dim);

  [[nodiscard]] std::size_t bytes() const { return bytes_; }
  void Decode(const std::byte* compact, float* values) const;
  // Each value becomes the nearest one that can be stored.
  void Encode(const float* values, std::byte* compact) const;
  // Each becomes one of the two around it, the upper one the more often the nearer it is: on
  // average nothing is lost, however small the steps of an optimizer are.
  void EncodeAtRandom(const float* values, std::uint32_t random, std::byte* compact) const;

 private:
  bool is_half_;
  std::size_t dim_;
  std::size_t bytes_;
};

}  // namespace monolith::core
