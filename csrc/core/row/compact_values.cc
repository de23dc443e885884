#include "core/row/compact_values.h"

#include <cstring>
#include <stdexcept>
#include <string>

#include "core/row/half.h"
#include "core/system/simd.h"

namespace monolith::core {
namespace {

using half_internal::Bits;
using half_internal::FromBits;

constexpr std::uint32_t kMagnitude = 0x7FFFFFFFu;
constexpr std::uint32_t kInfinity = 0x7F800000u;
constexpr std::uint32_t kGreatestHalf = 0x477FE000u;  // 65504.

constexpr std::int32_t kMostSteps = 127;
constexpr std::int32_t kLeastExponent = -126;  // Below it, a step would be a subnormal float.
constexpr std::int32_t kNotFinite = 127;       // In place of the exponent; the greatest is 122.

// 32 bits for element `i` of a row, a mixer that vectorises (lowbias32 of C. Wellons).
MONOLITH_SIMD_BODY std::uint32_t Draw(std::uint32_t random, std::size_t i) {
  std::uint32_t x = random + static_cast<std::uint32_t>(i) * 0x9E3779B9u;
  x = (x ^ (x >> 16)) * 0x7FEB352Du;
  x = (x ^ (x >> 15)) * 0x846CA68Bu;
  return x ^ (x >> 16);
}

// Finite values within the range of float16.
MONOLITH_SIMD_BODY float LimitToHalf(float value) {
  const std::uint32_t bits = Bits(value);
  const std::uint32_t magnitude = bits & kMagnitude;
  const bool too_great = magnitude > kGreatestHalf && magnitude < kInfinity;
  return FromBits((bits & ~kMagnitude) | (too_great ? kGreatestHalf : magnitude));
}

// The float16 before or after `value`, decided by the lowest 13 bits of `draw`: as many as a
// float has more than a float16.
MONOLITH_SIMD_BODY std::uint16_t HalfAtRandom(float value, std::uint32_t draw) {
  draw &= 0x1FFFu;
  const std::uint32_t bits = Bits(value);
  const std::uint32_t sign = bits >> 16 & 0x8000u;
  const std::uint32_t magnitude = bits & kMagnitude;
  // Change the bias of the exponent, add and cut off; a carry into the exponent is right.
  const std::uint32_t normal = (magnitude - (112u << 23) + draw) >> 13;
  // Below 2^-14 a float16 counts in steps of 2^-24. Sums up to 1024 are exact to 13 bits.
  const std::uint32_t small = magnitude < (113u << 23) ? magnitude : 113u << 23;
  const float steps = FromBits(small) * 0x1p24f + static_cast<float>(draw) * 0x1p-13f;
  const std::uint32_t subnormal = static_cast<std::uint32_t>(static_cast<std::int32_t>(steps));
  const std::uint32_t special = magnitude > kInfinity ? 0x7E00u : 0x7C00u;
  const std::uint32_t finite = magnitude < (113u << 23) ? subnormal : normal;
  return static_cast<std::uint16_t>(sign | (magnitude >= kInfinity ? special : finite));
}

MONOLITH_SIMD
void DecodeHalves(std::size_t dim, const std::byte* MONOLITH_RESTRICT compact,
                  float* MONOLITH_RESTRICT values) {
  for (std::size_t i = 0; i < dim; ++i) {
    std::uint16_t half = 0;
    std::memcpy(&half, compact + i * sizeof(half), sizeof(half));
    values[i] = FloatFromHalf(half);
  }
}

MONOLITH_SIMD
void EncodeHalves(std::size_t dim, const float* MONOLITH_RESTRICT values,
                  std::byte* MONOLITH_RESTRICT compact) {
  for (std::size_t i = 0; i < dim; ++i) {
    const std::uint16_t half = HalfFromFloat(LimitToHalf(values[i]));
    std::memcpy(compact + i * sizeof(half), &half, sizeof(half));
  }
}

MONOLITH_SIMD
void EncodeHalvesAtRandom(std::size_t dim, const float* MONOLITH_RESTRICT values,
                          std::uint32_t random, std::byte* MONOLITH_RESTRICT compact) {
  for (std::size_t i = 0; i < dim; ++i) {
    const std::uint16_t half = HalfAtRandom(LimitToHalf(values[i]), Draw(random, i));
    std::memcpy(compact + i * sizeof(half), &half, sizeof(half));
  }
}

// Two to the power of `exponent`, as a normal float.
float PowerOfTwo(std::int32_t exponent) {
  return FromBits(static_cast<std::uint32_t>(exponent + 127) << 23);
}

MONOLITH_SIMD
void DecodeSteps(std::size_t dim, const std::byte* MONOLITH_RESTRICT compact, float step,
                 float* MONOLITH_RESTRICT values) {
  for (std::size_t i = 0; i < dim; ++i) {
    values[i] = static_cast<float>(static_cast<std::int8_t>(compact[i])) * step;
  }
}

// Bits of the greatest magnitude. As integers, in which NaN is greater than infinity, and that than
// all numbers.
MONOLITH_SIMD
std::uint32_t GreatestMagnitude(std::size_t dim, const float* values) {
  std::int32_t greatest = 0;
  for (std::size_t i = 0; i < dim; ++i) {
    const auto magnitude = static_cast<std::int32_t>(Bits(values[i]) & kMagnitude);
    greatest = magnitude > greatest ? magnitude : greatest;
  }
  return static_cast<std::uint32_t>(greatest);
}

// How many steps a value has: cut off after adding `fraction` of one. The product is exact, and the
// sum, which is below 128, is exact to the 17 bits that a fraction has.
MONOLITH_SIMD_BODY std::int32_t Steps(float value, float steps_per_one, float fraction) {
  const float magnitude = FromBits(Bits(value) & kMagnitude);
  const auto steps = static_cast<std::int32_t>(magnitude * steps_per_one + fraction);
  return value < 0.0f ? -steps : steps;
}

MONOLITH_SIMD
void EncodeSteps(std::size_t dim, const float* MONOLITH_RESTRICT values, float steps_per_one,
                 std::byte* MONOLITH_RESTRICT compact) {
  for (std::size_t i = 0; i < dim; ++i) {
    compact[i] = static_cast<std::byte>(Steps(values[i], steps_per_one, 0.5f));
  }
}

MONOLITH_SIMD
void EncodeStepsAtRandom(std::size_t dim, const float* MONOLITH_RESTRICT values,
                         float steps_per_one, std::uint32_t random,
                         std::byte* MONOLITH_RESTRICT compact) {
  for (std::size_t i = 0; i < dim; ++i) {
    const auto draw = static_cast<std::int32_t>(Draw(random, i) >> 15);
    const float fraction = static_cast<float>(draw) * 0x1p-17f;
    compact[i] = static_cast<std::byte>(Steps(values[i], steps_per_one, fraction));
  }
}

// The least exponent e with greatest <= 127 * 2^e.
std::int32_t ExponentFor(std::uint32_t greatest) {
  // A number is m * 2^x with m in [1, 2), and 127 * 2^(x-6) is 1.984375 * 2^x.
  constexpr std::uint32_t kFractionOf127 = 0x7E0000u;
  const auto x = static_cast<std::int32_t>(greatest >> 23) - 127;
  const std::int32_t exponent = x - 6 + ((greatest & 0x7FFFFFu) > kFractionOf127 ? 1 : 0);
  return exponent < kLeastExponent ? kLeastExponent : exponent;
}

// The form that encoding the decoded values would give: no room is left at the upper end, and zeros
// are all bytes zero.
void Normalize(std::size_t dim, std::int32_t exponent, std::byte* compact) {
  std::int32_t most = 0;
  for (std::size_t i = 1; i <= dim; ++i) {
    const auto steps = static_cast<std::int32_t>(static_cast<std::int8_t>(compact[i]));
    most = most > steps ? most : steps;
    most = most > -steps ? most : -steps;
  }
  if (most <= kMostSteps / 2 && exponent > kLeastExponent) {  // It has been rounded down to 63.
    --exponent;
    for (std::size_t i = 1; i <= dim; ++i) {
      compact[i] = static_cast<std::byte>(2 * static_cast<std::int8_t>(compact[i]));
    }
  }
  compact[0] = static_cast<std::byte>(most == 0 ? 0 : exponent);
}

// Calls `encode(steps_per_one, steps)` where the values are finite.
template <typename EncodeAll>
void EncodeInt8(std::size_t dim, const float* values, std::byte* compact, EncodeAll&& encode) {
  const std::uint32_t greatest = GreatestMagnitude(dim, values);
  if (greatest >= kInfinity) {
    std::memset(compact, 1, dim + 1);
    compact[0] = static_cast<std::byte>(kNotFinite);
    return;
  }
  const std::int32_t exponent = ExponentFor(greatest);
  encode(PowerOfTwo(-exponent), compact + 1);
  Normalize(dim, exponent, compact);
}

}  // namespace

CompactValues::CompactValues(EntryConfig::Storage storage, std::size_t dim)
    : is_half_(storage == EntryConfig::Storage::kFloat16),
      dim_(dim),
      bytes_(is_half_ ? dim * sizeof(std::uint16_t) : dim + 1) {
  if (!is_half_ && storage != EntryConfig::Storage::kInt8) {
    throw std::invalid_argument(
        "Unknown storage of rows: " + std::to_string(static_cast<std::int32_t>(storage)) +
        ". Expected 0 (FLOAT32), 1 (FLOAT16) or 2 (INT8).");
  }
}

void CompactValues::Decode(const std::byte* compact, float* values) const {
  if (is_half_) {
    DecodeHalves(dim_, compact, values);
    return;
  }
  const auto exponent = static_cast<std::int8_t>(compact[0]);
  const float step = exponent == kNotFinite ? FromBits(0x7FC00000u) : PowerOfTwo(exponent);
  DecodeSteps(dim_, compact + 1, step, values);
}

void CompactValues::Encode(const float* values, std::byte* compact) const {
  if (is_half_) {
    EncodeHalves(dim_, values, compact);
    return;
  }
  EncodeInt8(dim_, values, compact, [&](float steps_per_one, std::byte* steps) {
    EncodeSteps(dim_, values, steps_per_one, steps);
  });
}

void CompactValues::EncodeAtRandom(const float* values, std::uint32_t random,
                                   std::byte* compact) const {
  if (is_half_) {
    EncodeHalvesAtRandom(dim_, values, random, compact);
    return;
  }
  EncodeInt8(dim_, values, compact, [&](float steps_per_one, std::byte* steps) {
    EncodeStepsAtRandom(dim_, values, steps_per_one, random, steps);
  });
}

}  // namespace monolith::core
