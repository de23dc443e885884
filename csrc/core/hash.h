// The one hash of ids that tables, filters and batches share.
#pragma once

#include <cstdint>

namespace monolith::core {

// Mixes all 64 bits into all 64 bits; ids of real systems are far from random (slot numbers in the
// high bits, counters in the low ones).
inline std::uint64_t HashId(std::int64_t id) {
  auto x = static_cast<std::uint64_t>(id);
  x ^= x >> 32;
  x *= 0x9E3779B97F4A7C15ull;
  x ^= x >> 29;
  x *= 0xBF58476D1CE4E5B9ull;
  x ^= x >> 32;
  return x;
}

}  // namespace monolith::core
