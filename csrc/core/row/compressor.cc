#include "core/row/compressor.h"

#include <cmath>
#include <cstring>
#include <stdexcept>
#include <string>

#include "core/row/half.h"
#include "core/system/simd.h"

namespace monolith::core {
namespace {

class Fp32 final : public Compressor {
 public:
  explicit Fp32(std::size_t dim) : dim_(dim) {}

  [[nodiscard]] std::size_t dim() const override { return dim_; }
  [[nodiscard]] std::size_t bytes() const override { return dim_ * sizeof(float); }
  void Encode(const float* values, std::byte* compressed) const override {
    std::memcpy(compressed, values, bytes());
  }
  void Decode(const std::byte* compressed, float* values) const override {
    std::memcpy(values, compressed, bytes());
  }

 private:
  std::size_t dim_;
};

MONOLITH_SIMD
void EncodeFp16(std::size_t dim, const float* MONOLITH_RESTRICT values,
                std::byte* MONOLITH_RESTRICT compressed) {
  for (std::size_t i = 0; i < dim; ++i) {
    const std::uint16_t half = HalfFromFloat(values[i]);
    std::memcpy(compressed + i * sizeof(half), &half, sizeof(half));
  }
}

MONOLITH_SIMD
void DecodeFp16(std::size_t dim, const std::byte* MONOLITH_RESTRICT compressed,
                float* MONOLITH_RESTRICT values) {
  for (std::size_t i = 0; i < dim; ++i) {
    std::uint16_t half = 0;
    std::memcpy(&half, compressed + i * sizeof(half), sizeof(half));
    values[i] = FloatFromHalf(half);
  }
}

class Fp16 final : public Compressor {
 public:
  explicit Fp16(std::size_t dim) : dim_(dim) {}

  [[nodiscard]] std::size_t dim() const override { return dim_; }
  [[nodiscard]] std::size_t bytes() const override { return dim_ * sizeof(std::uint16_t); }
  void Encode(const float* values, std::byte* compressed) const override {
    EncodeFp16(dim_, values, compressed);
  }
  void Decode(const std::byte* compressed, float* values) const override {
    DecodeFp16(dim_, compressed, values);
  }

 private:
  std::size_t dim_;
};

MONOLITH_SIMD
void EncodeFixedR8(std::size_t dim, FixedR8 code, const float* MONOLITH_RESTRICT values,
                   std::byte* MONOLITH_RESTRICT compressed) {
  for (std::size_t i = 0; i < dim; ++i) {
    compressed[i] = static_cast<std::byte>(code.Encode(values[i]));
  }
}

MONOLITH_SIMD
void DecodeFixedR8(std::size_t dim, FixedR8 code, const std::byte* MONOLITH_RESTRICT compressed,
                   float* MONOLITH_RESTRICT values) {
  for (std::size_t i = 0; i < dim; ++i) {
    values[i] = code.Decode(static_cast<std::int8_t>(compressed[i]));
  }
}

class FixedR8Compressor final : public Compressor {
 public:
  FixedR8Compressor(float r, std::size_t dim) : code_(r), dim_(dim) {}

  [[nodiscard]] std::size_t dim() const override { return dim_; }
  [[nodiscard]] std::size_t bytes() const override { return dim_; }
  void Encode(const float* values, std::byte* compressed) const override {
    EncodeFixedR8(dim_, code_, values, compressed);
  }
  void Decode(const std::byte* compressed, float* values) const override {
    DecodeFixedR8(dim_, code_, compressed, values);
  }

 private:
  FixedR8 code_;
  std::size_t dim_;
};

// The sign of the hash-net value amplitude * tanh(scale * value), which is the sign of the value;
// what is not positive counts as negative. A byte of 0 stands in rows that were never assigned.
class OneBit final : public Compressor {
 public:
  OneBit(const OneBitConfig& config, std::size_t dim) : amplitude_(config.amplitude), dim_(dim) {
    Validate(config);
  }

  [[nodiscard]] std::size_t dim() const override { return dim_; }
  [[nodiscard]] std::size_t bytes() const override { return dim_; }
  void Encode(const float* values, std::byte* compressed) const override {
    for (std::size_t i = 0; i < dim_; ++i) {
      compressed[i] = static_cast<std::byte>(values[i] > 0.0f ? 1 : -1);
    }
  }
  void Decode(const std::byte* compressed, float* values) const override {
    for (std::size_t i = 0; i < dim_; ++i) {
      values[i] = static_cast<float>(static_cast<std::int8_t>(compressed[i])) * amplitude_;
    }
  }

 private:
  float amplitude_;
  std::size_t dim_;
};

struct CompressorMaker {
  const CompressorConfig& config;
  std::size_t dim;

  std::unique_ptr<Compressor> operator()(const std::monostate&) const {
    if (config.unknown_member != 0) {
      throw std::invalid_argument("Unknown tpye of float compressor. Got `" + Describe(config) +
                                  "`.");
    }
    throw std::invalid_argument("FloatCompressorConfig must be set type. Got `" + Describe(config) +
                                "`.");
  }
  std::unique_ptr<Compressor> operator()(const Fp32Config&) const {
    return std::make_unique<Fp32>(dim);
  }
  std::unique_ptr<Compressor> operator()(const Fp16Config&) const {
    return std::make_unique<Fp16>(dim);
  }
  std::unique_ptr<Compressor> operator()(const FixedR8Config& fixed) const {
    return std::make_unique<FixedR8Compressor>(fixed.r, dim);
  }
  std::unique_ptr<Compressor> operator()(const OneBitConfig& one_bit) const {
    return std::make_unique<OneBit>(one_bit, dim);
  }
};

void RequirePositive(const char* setting, float value) {
  if (!(value > 0.0f) || !std::isfinite(value)) {
    throw std::invalid_argument(std::string(setting) + " must be positive, got " +
                                std::to_string(value) + ".");
  }
}

}  // namespace

FixedR8::FixedR8(float r) : step_(r / 128.0f) { RequirePositive("fixed_r8's r", r); }

void Validate(const OneBitConfig& config) {
  if (config.step_size <= 0) {
    throw std::invalid_argument("one_bit's step_size must be positive, got " +
                                std::to_string(config.step_size) + ".");
  }
  RequirePositive("one_bit's init_scale", config.init_scale);
  RequirePositive("one_bit's max_scale", config.max_scale);
  RequirePositive("one_bit's amplitude", config.amplitude);
}

std::unique_ptr<Compressor> MakeCompressor(const CompressorConfig& config, std::size_t dim) {
  return std::visit(CompressorMaker{config, dim}, config.type);
}

}  // namespace monolith::core
