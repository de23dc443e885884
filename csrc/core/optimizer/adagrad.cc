#include <cmath>
#include <cstring>

#include "core/optimizer/factories.h"
#include "core/optimizer/stateful.h"
#include "core/system/simd.h"

namespace monolith::core {
namespace {

// Where nothing has been accumulated yet the gradient is zero as well: the weight stays, instead of
// becoming 0 / 0.
MONOLITH_SIMD_BODY
void AdagradRow(std::size_t dim, float learning_rate, float weight_decay,
                const float* MONOLITH_RESTRICT grad, float* MONOLITH_RESTRICT w,
                float* MONOLITH_RESTRICT norm) {
  for (std::size_t i = 0; i < dim; ++i) {
    const float h = grad[i] + weight_decay * w[i];
    const float n = norm[i] + h * h;
    norm[i] = n;
    const float step = learning_rate * h / std::sqrt(n);
    w[i] -= n > 0.0f ? step : 0.0f;
  }
}

MONOLITH_SIMD
void AdagradStep(std::size_t dim, float learning_rate, float weight_decay, const float* grad,
                 float* w, float* norm) {
  AdagradRow(dim, learning_rate, weight_decay, grad, w, norm);
}

MONOLITH_SIMD
void AdagradSteps(const SegmentRows& rows, std::size_t dim, float learning_rate,
                  float weight_decay) {
  for (std::size_t i = 0; i < rows.n; ++i) {
    AdagradRow(dim, learning_rate, weight_decay, rows.grad(i), rows.w(i),
               reinterpret_cast<float*>(rows.state(i)));
  }
}

// The weight decays beside the step, not through the accumulator.
MONOLITH_SIMD
void DecoupledAdagradStep(std::size_t dim, float learning_rate, float weight_decay,
                          const float* MONOLITH_RESTRICT grad, float* MONOLITH_RESTRICT w,
                          float* MONOLITH_RESTRICT norm) {
  const float decay = learning_rate * weight_decay;
  for (std::size_t i = 0; i < dim; ++i) {
    const float n = norm[i] + grad[i] * grad[i];
    norm[i] = n;
    const float step = learning_rate * grad[i] / std::sqrt(n);
    w[i] -= (n > 0.0f ? step : 0.0f) + decay * w[i];
  }
}

class Adagrad final : public StatefulOptimizer {
 public:
  Adagrad(const AdagradConfig& config, std::size_t dim)
      : StatefulOptimizer(
            /*dump_member=*/1, dim,
            {{"norm", 1, StateField::Kind::kFloats, dim, config.initial_accumulator_value}}),
        weight_decay_(config.weight_decay_factor) {}

  void Step(float* w, std::byte* state, const float* grad, float learning_rate,
            std::int64_t) const override {
    AdagradStep(dim(), learning_rate, weight_decay_, grad, w, Floats(state, 0));
  }
  void Steps(const SegmentRows& rows, float learning_rate, std::int64_t) const override {
    AdagradSteps(rows, dim(), learning_rate, weight_decay_);
  }

 private:
  float weight_decay_;
};

// Adagrad with weight decay, coupled or decoupled, that remembers each row's last step. How
// `enable_dynamic_wd`, `dynamic_wd_temperature` and `flip_direction` would change the decay has
// never been defined; they are accepted, since Python sets them by default, and the decay is the
// plain one.
class DynamicWdAdagrad final : public StatefulOptimizer {
 public:
  DynamicWdAdagrad(const DynamicWdAdagradConfig& config, std::size_t dim)
      : StatefulOptimizer(
            /*dump_member=*/4, dim,
            {{"norm", 1, StateField::Kind::kFloats, dim, config.initial_accumulator_value},
             {"last_update_step", 2, StateField::Kind::kInt64, 1, 0.0f}}),
        weight_decay_(config.weight_decay_factor),
        decoupled_(config.decouple_weight_decay) {}

  void Step(float* w, std::byte* state, const float* grad, float learning_rate,
            std::int64_t global_step) const override {
    const auto step = decoupled_ ? DecoupledAdagradStep : AdagradStep;
    step(dim(), learning_rate, weight_decay_, grad, w, Floats(state, 0));
    std::memcpy(Floats(state, 1), &global_step, sizeof(global_step));
  }

 private:
  float weight_decay_;
  bool decoupled_;
};

}  // namespace

std::unique_ptr<Optimizer> MakeAdagrad(const AdagradConfig& config, std::size_t dim) {
  RequireNotNegative("initial_accumulator_value", config.initial_accumulator_value);
  return std::make_unique<Adagrad>(config, dim);
}

std::unique_ptr<Optimizer> MakeDynamicWdAdagrad(const DynamicWdAdagradConfig& config,
                                                std::size_t dim) {
  RequireNotNegative("initial_accumulator_value", config.initial_accumulator_value);
  return std::make_unique<DynamicWdAdagrad>(config, dim);
}

}  // namespace monolith::core
