// Conversion between float32 and IEEE float16, in integer arithmetic that vectorises.
//
// No step produces or consumes a subnormal float32: TensorFlow runs its kernels with subnormals
// flushed to zero, and the small end of float16 must survive that.
#pragma once

#include <cstdint>
#include <cstring>

namespace monolith::core {

namespace half_internal {

inline std::uint32_t Bits(float value) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

inline float FromBits(std::uint32_t bits) {
  float value = 0.0f;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

}  // namespace half_internal

// Rounds to nearest, ties to even; overflows to infinity; every NaN becomes the quiet one.
inline std::uint16_t HalfFromFloat(float value) {
  using half_internal::Bits;
  using half_internal::FromBits;
  const std::uint32_t bits = Bits(value);
  const std::uint32_t sign = bits >> 16 & 0x8000u;
  const std::uint32_t magnitude = bits & 0x7FFFFFFFu;

  // Below 2^-14: adding 0.5 leaves the float16's ten bits at the end of the sum, rounded.
  const std::uint32_t subnormal = Bits(FromBits(magnitude) + 0.5f) - Bits(0.5f);
  // Otherwise: change the bias of the exponent and round; a carry into the exponent is right.
  const std::uint32_t odd = magnitude >> 13 & 1u;
  const std::uint32_t normal = (magnitude - (112u << 23) + 0xFFFu + odd) >> 13;
  // From 65520 on: infinity or NaN.
  const std::uint32_t special = magnitude > 0x7F800000u ? 0x7E00u : 0x7C00u;

  const std::uint32_t finite = magnitude < (113u << 23) ? subnormal : normal;
  const std::uint32_t half = magnitude >= 0x477FF000u ? special : finite;
  return static_cast<std::uint16_t>(sign | half);
}

inline float FloatFromHalf(std::uint16_t half) {
  using half_internal::FromBits;
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000u) << 16;
  const std::uint32_t magnitude = static_cast<std::uint32_t>(half & 0x7FFFu) << 13;

  // Below 2^-14: the ten bits as a fraction of 2^-14, with a leading one that is taken off again.
  const float subnormal = FromBits(magnitude + (113u << 23)) - 0x1p-14f;
  const float normal = FromBits(magnitude + (112u << 23));
  const float special = FromBits(magnitude + (224u << 23));

  const float finite = magnitude < (1u << 23) ? subnormal : normal;
  const float value = magnitude >= (31u << 23) ? special : finite;
  return FromBits(half_internal::Bits(value) | sign);
}

}  // namespace monolith::core
