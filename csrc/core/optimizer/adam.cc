#include <cmath>

#include "core/optimizer/factories.h"
#include "core/optimizer/stateful.h"
#include "core/system/simd.h"

namespace monolith::core {
namespace {

struct AdamSettings {
  float beta1;
  float beta2;
  float weight_decay;
  float epsilon;
};

MONOLITH_SIMD
void AdamStep(std::size_t dim, float rate, const AdamSettings& settings,
              const float* MONOLITH_RESTRICT grad, float* MONOLITH_RESTRICT w,
              float* MONOLITH_RESTRICT m, float* MONOLITH_RESTRICT v) {
  const auto [beta1, beta2, weight_decay, epsilon] = settings;
  for (std::size_t i = 0; i < dim; ++i) {
    const float h = grad[i] + weight_decay * w[i];
    m[i] += (h - m[i]) * (1.0f - beta1);
    v[i] += (h * h - v[i]) * (1.0f - beta2);
    w[i] -= rate * m[i] / (std::sqrt(v[i]) + epsilon);
  }
}

MONOLITH_SIMD
void NesterovAdamStep(std::size_t dim, float rate, const AdamSettings& settings,
                      const float* MONOLITH_RESTRICT grad, float* MONOLITH_RESTRICT w,
                      float* MONOLITH_RESTRICT m, float* MONOLITH_RESTRICT v) {
  const auto [beta1, beta2, weight_decay, epsilon] = settings;
  for (std::size_t i = 0; i < dim; ++i) {
    const float h = grad[i] + weight_decay * w[i];
    m[i] += (h - m[i]) * (1.0f - beta1);
    v[i] += (h * h - v[i]) * (1.0f - beta2);
    w[i] -= rate * (h * (1.0f - beta1) + beta1 * m[i]) / (std::sqrt(v[i]) + epsilon);
  }
}

MONOLITH_SIMD
void AmsgradStep(std::size_t dim, float rate, const AdamSettings& settings,
                 const float* MONOLITH_RESTRICT grad, float* MONOLITH_RESTRICT w,
                 float* MONOLITH_RESTRICT m, float* MONOLITH_RESTRICT v,
                 float* MONOLITH_RESTRICT vhat) {
  const auto [beta1, beta2, weight_decay, epsilon] = settings;
  for (std::size_t i = 0; i < dim; ++i) {
    const float h = grad[i] + weight_decay * w[i];
    m[i] += (h - m[i]) * (1.0f - beta1);
    v[i] += (h * h - v[i]) * (1.0f - beta2);
    vhat[i] = vhat[i] > v[i] ? vhat[i] : v[i];
    w[i] -= rate * m[i] / (std::sqrt(vhat[i]) + epsilon);
  }
}

MONOLITH_SIMD
void NesterovAmsgradStep(std::size_t dim, float rate, const AdamSettings& settings,
                         const float* MONOLITH_RESTRICT grad, float* MONOLITH_RESTRICT w,
                         float* MONOLITH_RESTRICT m, float* MONOLITH_RESTRICT v,
                         float* MONOLITH_RESTRICT vhat) {
  const auto [beta1, beta2, weight_decay, epsilon] = settings;
  for (std::size_t i = 0; i < dim; ++i) {
    const float h = grad[i] + weight_decay * w[i];
    m[i] += (h - m[i]) * (1.0f - beta1);
    v[i] += (h * h - v[i]) * (1.0f - beta2);
    vhat[i] = vhat[i] > v[i] ? vhat[i] : v[i];
    w[i] -= rate * (h * (1.0f - beta1) + beta1 * m[i]) / (std::sqrt(vhat[i]) + epsilon);
  }
}

// `powers` holds beta1^t and beta2^t of this row's next step t; it corrects the bias of m and v,
// which start at 0.
float CorrectedRate(float learning_rate, const float* powers) {
  return learning_rate * std::sqrt(1.0f - powers[1]) / (1.0f - powers[0]);
}

// Below 1e-30 a power has long stopped to matter (1 - 1e-30 is 1), but it would end among the
// subnormal numbers, which are slow, and stay there.
float NextPower(float power, float beta) {
  const float next = power * beta;
  return next < 1e-30f ? 0.0f : next;
}

void Advance(const AdamSettings& settings, float* powers) {
  powers[0] = NextPower(powers[0], settings.beta1);
  powers[1] = NextPower(powers[1], settings.beta2);
}

class Adam final : public StatefulOptimizer {
 public:
  Adam(const AdamConfig& config, std::size_t dim)
      : StatefulOptimizer(/*dump_member=*/7, dim,
                          {{"m", 1, StateField::Kind::kFloats, dim, 0.0f},
                           {"v", 2, StateField::Kind::kFloats, dim, 0.0f},
                           {"beta1_power", 3, StateField::Kind::kFloats, 1, config.beta1},
                           {"beta2_power", 4, StateField::Kind::kFloats, 1, config.beta2}}),
        settings_{config.beta1, config.beta2, config.weight_decay_factor, config.epsilon},
        nesterov_(config.use_nesterov) {}

  void Step(float* w, std::byte* state, const float* grad, float learning_rate,
            std::int64_t) const override {
    float* const powers = Floats(state, 2);
    const float rate = CorrectedRate(learning_rate, powers);
    const auto step = nesterov_ ? NesterovAdamStep : AdamStep;
    step(dim(), rate, settings_, grad, w, Floats(state, 0), Floats(state, 1));
    Advance(settings_, powers);
  }

 private:
  AdamSettings settings_;
  bool nesterov_;
};

class Amsgrad final : public StatefulOptimizer {
 public:
  Amsgrad(const AmsgradConfig& config, std::size_t dim)
      : StatefulOptimizer(/*dump_member=*/8, dim,
                          {{"m", 1, StateField::Kind::kFloats, dim, 0.0f},
                           {"v", 2, StateField::Kind::kFloats, dim, 0.0f},
                           {"vhat", 3, StateField::Kind::kFloats, dim, 0.0f},
                           {"beta1_power", 4, StateField::Kind::kFloats, 1, config.beta1},
                           {"beta2_power", 5, StateField::Kind::kFloats, 1, config.beta2}}),
        settings_{config.beta1, config.beta2, config.weight_decay_factor, config.epsilon},
        nesterov_(config.use_nesterov) {}

  void Step(float* w, std::byte* state, const float* grad, float learning_rate,
            std::int64_t) const override {
    float* const powers = Floats(state, 3);
    const float rate = CorrectedRate(learning_rate, powers);
    const auto step = nesterov_ ? NesterovAmsgradStep : AmsgradStep;
    step(dim(), rate, settings_, grad, w, Floats(state, 0), Floats(state, 1), Floats(state, 2));
    Advance(settings_, powers);
  }

 private:
  AdamSettings settings_;
  bool nesterov_;
};

template <typename Config>
void Require(const Config& config) {
  RequireFraction("beta1", config.beta1);
  RequireFraction("beta2", config.beta2);
  RequireNotNegative("epsilon", config.epsilon);
}

}  // namespace

std::unique_ptr<Optimizer> MakeAdam(const AdamConfig& config, std::size_t dim) {
  Require(config);
  return std::make_unique<Adam>(config, dim);
}

std::unique_ptr<Optimizer> MakeAmsgrad(const AmsgradConfig& config, std::size_t dim) {
  Require(config);
  return std::make_unique<Amsgrad>(config, dim);
}

}  // namespace monolith::core
