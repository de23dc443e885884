#include "core/row/retriever.h"

#include <algorithm>
#include <atomic>
#include <cmath>

#include "core/row/compressor.h"
#include "core/system/simd.h"

namespace monolith::core {
namespace {

constexpr float kHashNetGamma = 0.005f;

MONOLITH_SIMD
void RoundFixedR8(std::size_t dim, FixedR8 code, const float* MONOLITH_RESTRICT w,
                  float* MONOLITH_RESTRICT values) {
  for (std::size_t i = 0; i < dim; ++i) values[i] = code.Decode(code.Encode(w[i]));
}

class FakeQuant final : public Retriever {
 public:
  FakeQuant(const FixedR8Config& config, std::size_t dim) : code_(config.r), dim_(dim) {}

  [[nodiscard]] std::size_t dim() const override { return dim_; }
  void Forward(const float* w, float* values) const override {
    RoundFixedR8(dim_, code_, w, values);
  }
  void Backward(const float*, const float* grad, std::int64_t, float* w_grad) const override {
    std::copy_n(grad, dim_, w_grad);
  }

 private:
  FixedR8 code_;
  std::size_t dim_;
};

class HashNet final : public Retriever {
 public:
  HashNet(const OneBitConfig& config, std::size_t dim)
      : config_(config), dim_(dim), scale_(config.init_scale) {
    Validate(config);
  }

  [[nodiscard]] std::size_t dim() const override { return dim_; }

  void Forward(const float* w, float* values) const override {
    const float scale = scale_.load(std::memory_order_relaxed);
    for (std::size_t i = 0; i < dim_; ++i) values[i] = config_.amplitude * std::tanh(scale * w[i]);
  }

  void Backward(const float* w, const float* grad, std::int64_t global_step,
                float* w_grad) const override {
    const float scale = ScaleAt(global_step);
    for (std::size_t i = 0; i < dim_; ++i) {
      const float tanh = std::tanh(scale * w[i]);
      w_grad[i] = grad[i] * config_.amplitude * scale * (1.0f - tanh * tanh);
    }
  }

 private:
  // Every step_size steps the scale is set anew, before it is used. All rows of such a step set it
  // to the same number; only the first of them writes.
  [[nodiscard]] float ScaleAt(std::int64_t global_step) const {
    const float current = scale_.load(std::memory_order_relaxed);
    if (global_step < 0 || global_step % config_.step_size != 0) return current;
    const float grown =
        config_.init_scale * std::sqrt(1.0f + kHashNetGamma * static_cast<float>(global_step));
    const float scale = std::min(grown, config_.max_scale);
    if (scale != current) scale_.store(scale, std::memory_order_relaxed);
    return scale;
  }

  OneBitConfig config_;
  std::size_t dim_;
  mutable std::atomic<float> scale_;
};

}  // namespace

std::unique_ptr<Retriever> MakeRetriever(const std::optional<CompressorConfig>& config,
                                         std::size_t dim) {
  if (!config.has_value()) return nullptr;
  if (const auto* fixed = std::get_if<FixedR8Config>(&config->type)) {
    return std::make_unique<FakeQuant>(*fixed, dim);
  }
  if (const auto* one_bit = std::get_if<OneBitConfig>(&config->type)) {
    return std::make_unique<HashNet>(*one_bit, dim);
  }
  return nullptr;
}

}  // namespace monolith::core
