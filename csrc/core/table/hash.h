// The one hash of ids that tables, filters and batches share, and one of names.
#pragma once

#include <cstdint>
#include <string_view>

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

// The one id that has this hash: every step above can be undone, so no two ids share a hash.
inline std::int64_t IdOfHash(std::uint64_t hash) {
  std::uint64_t x = hash;
  x ^= x >> 32;
  x *= 0x96DE1B173F119089ull;  // Inverse of 0xBF58476D1CE4E5B9 modulo 2^64,
  x ^= x >> 29 ^ x >> 58;
  x *= 0xF1DE83E19937733Dull;  // and of 0x9E3779B97F4A7C15.
  x ^= x >> 32;
  return static_cast<std::int64_t>(x);
}

// Of a name, the same in every process and on every machine (FNV-1a, 64 bits): counts that are
// saved under it are found again.
[[nodiscard]] inline std::uint64_t HashName(std::string_view name) {
  std::uint64_t hash = 0xCBF29CE484222325ull;
  for (const char c : name) {
    hash ^= static_cast<unsigned char>(c);
    hash *= 0x100000001B3ull;
  }
  return hash;
}

}  // namespace monolith::core
