// Rounding to float16 that is right on average.
#pragma once

#include <cstdint>

namespace monolith::core {

// A multiply-with-carry generator of Marsaglia: cheap, and good enough to decide a rounding.
//
// It is one half of the usual pair. Tables have always been trained with the pair started at {0,
// 1}, where the other half stays 0 for ever: the draws are the same without it.
class MwcRandom {
 public:
  // Draws lie in [0, kRange). Divided by 2^32, as they once were, they never got beyond 0.27 and
  // rounded up far too often.
  static constexpr std::uint32_t kRange = 18000u << 16;

  std::uint32_t Next() {
    state_ = 18000 * (state_ & 65535) + (state_ >> 16);
    return state_;
  }

 private:
  std::uint32_t state_ = 1;
};

// One of the two float16 numbers around `value`: the upper one with probability
// (value - down) / (up - down), decided by one draw. Beyond the range of float16 it is the greatest
// float16 of that sign; infinities and NaN stay.
[[nodiscard]] float RoundToFloat16(float value, MwcRandom* random);

}  // namespace monolith::core
