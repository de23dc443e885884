// Smaller forms of the values, for rows that are only served.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "core/table/table_config.h"

namespace monolith::core {

// Immutable: may be called from any thread. Compressed bytes need no alignment, and all zeros
// decode to zeros.
class Compressor {
 public:
  virtual ~Compressor() = default;

  [[nodiscard]] virtual std::size_t dim() const = 0;
  [[nodiscard]] virtual std::size_t bytes() const = 0;  // Of `dim` values.
  virtual void Encode(const float* values, std::byte* compressed) const = 0;
  virtual void Decode(const std::byte* compressed, float* values) const = 0;
};

// Throws std::invalid_argument if no member is set or a setting is out of range.
[[nodiscard]] std::unique_ptr<Compressor> MakeCompressor(const CompressorConfig& config,
                                                         std::size_t dim);

// A value as a multiple of r/128, rounded to the nearest (halves away from zero) and limited to
// [-r, 127/128 r]; NaN becomes 0.
class FixedR8 {
 public:
  // Throws std::invalid_argument unless r is positive and finite.
  explicit FixedR8(float r);

  [[nodiscard]] std::int8_t Encode(float value) const {
    const float half = value < 0.0f ? -step_ / 2 : step_ / 2;
    const float steps = (value + half) / step_;
    const float limited = steps < -128.0f ? -128.0f : steps > 127.0f ? 127.0f : steps;
    return static_cast<std::int8_t>(static_cast<std::int32_t>(limited == limited ? limited : 0.0f));
  }
  [[nodiscard]] float Decode(std::int8_t steps) const { return static_cast<float>(steps) * step_; }

 private:
  float step_;
};

// Throws std::invalid_argument: step_size, the scales and the amplitude have to be positive.
void Validate(const OneBitConfig& config);

}  // namespace monolith::core
