#include "core/row/initializer.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <stdexcept>
#include <string>

namespace monolith::core {
namespace {

class Constant final : public Initializer {
 public:
  Constant(float value, std::size_t dim) : value_(value), dim_(dim) {}

  [[nodiscard]] std::size_t dim() const override { return dim_; }
  void Initialize(float* values) const override { std::fill_n(values, dim_, value_); }

 private:
  float value_;
  std::size_t dim_;
};

class RandomUniform final : public Initializer {
 public:
  RandomUniform(const RandomUniformConfig& config, std::size_t dim)
      : min_(config.minval), max_(config.maxval), dim_(dim) {}

  [[nodiscard]] std::size_t dim() const override { return dim_; }

  void Initialize(float* values) const override {
    thread_local std::mt19937 random;
    for (std::size_t i = 0; i < dim_; ++i) {
      // 24 random bits are what a float in [0, 1) holds. The product may still round up to max_.
      const float fraction = static_cast<float>(random() >> 8) * 0x1p-24f;
      const float value = min_ + fraction * (max_ - min_);
      values[i] = value < max_ ? value : min_;
    }
  }

 private:
  float min_;
  float max_;
  std::size_t dim_;
};

struct InitializerMaker {
  const InitializerConfig& config;
  std::size_t dim;

  std::unique_ptr<Initializer> operator()(const std::monostate&) const {
    if (config.unknown_member != 0) {
      throw std::invalid_argument("Unsupported initializer: " + Describe(config) + ".");
    }
    throw std::invalid_argument("InitializerConfig must be set type. Got `" + Describe(config) +
                                "`.");
  }
  std::unique_ptr<Initializer> operator()(const ZerosConfig&) const {
    return std::make_unique<Constant>(0.0f, dim);
  }
  std::unique_ptr<Initializer> operator()(const OnesConfig&) const {
    return std::make_unique<Constant>(1.0f, dim);
  }
  std::unique_ptr<Initializer> operator()(const ConstantsConfig& constants) const {
    return std::make_unique<Constant>(constants.constant, dim);
  }
  std::unique_ptr<Initializer> operator()(const RandomUniformConfig& uniform) const {
    // The width has to be finite, too. Refuses NaN.
    if (!(uniform.minval <= uniform.maxval) || !std::isfinite(uniform.maxval - uniform.minval)) {
      throw std::invalid_argument("random_uniform needs finite minval <= maxval, got " +
                                  std::to_string(uniform.minval) + " and " +
                                  std::to_string(uniform.maxval) + ".");
    }
    return std::make_unique<RandomUniform>(uniform, dim);
  }
};

}  // namespace

std::unique_ptr<Initializer> MakeInitializer(const InitializerConfig& config, std::size_t dim) {
  return std::visit(InitializerMaker{config, dim}, config.type);
}

}  // namespace monolith::core
