#include <cmath>

#include "core/optimizer/factories.h"
#include "core/optimizer/stateful.h"
#include "core/system/simd.h"

namespace monolith::core {
namespace {

// In double precision, as tables trained with it so far.
MONOLITH_SIMD
void RmspropStep(std::size_t dim, float learning_rate, float weight_decay, float mu,
                 const float* MONOLITH_RESTRICT grad, float* MONOLITH_RESTRICT w,
                 float* MONOLITH_RESTRICT n) {
  const double rate = learning_rate;
  const double decay = weight_decay;
  const double keep = mu;
  for (std::size_t i = 0; i < dim; ++i) {
    const double weight = w[i];
    const double dx = grad[i] + decay * weight;
    const double square = keep * n[i] + (1.0 - keep) * dx * dx;
    n[i] = static_cast<float>(square);
    w[i] = static_cast<float>(weight - rate * dx / (std::sqrt(square) + 1.0));
  }
}

// Sums the squares instead of averaging them.
MONOLITH_SIMD
void RmspropV2Step(std::size_t dim, float learning_rate, float weight_decay, float mu,
                   const float* MONOLITH_RESTRICT grad, float* MONOLITH_RESTRICT w,
                   float* MONOLITH_RESTRICT n) {
  for (std::size_t i = 0; i < dim; ++i) {
    const float dx = grad[i] + weight_decay * w[i];
    n[i] = mu * n[i] + dx * dx;
    w[i] -= learning_rate * dx / (std::sqrt(n[i]) + 1.0f);
  }
}

using StepFunction = void (*)(std::size_t, float, float, float, const float*, float*, float*);

class Rmsprop final : public StatefulOptimizer {
 public:
  Rmsprop(std::uint32_t dump_member, StepFunction step, float weight_decay, float mu,
          std::size_t dim)
      : StatefulOptimizer(dump_member, dim, {{"n", 1, StateField::Kind::kFloats, dim, 0.0f}}),
        step_(step),
        weight_decay_(weight_decay),
        mu_(mu) {
    RequireNotNegative("momentum", mu);
  }

  // The learning rate of this step counts, not the one in the config.
  void Step(float* w, std::byte* state, const float* grad, float learning_rate,
            std::int64_t) const override {
    step_(dim(), learning_rate, weight_decay_, mu_, grad, w, Floats(state, 0));
  }

 private:
  StepFunction step_;
  float weight_decay_;
  float mu_;
};

}  // namespace

std::unique_ptr<Optimizer> MakeRmsprop(const RmspropConfig& config, std::size_t dim) {
  return std::make_unique<Rmsprop>(/*dump_member=*/11, RmspropStep, config.weight_decay_factor,
                                   config.momentum, dim);
}

std::unique_ptr<Optimizer> MakeRmspropV2(const RmspropV2Config& config, std::size_t dim) {
  return std::make_unique<Rmsprop>(/*dump_member=*/12, RmspropV2Step, config.weight_decay_factor,
                                   config.momentum, dim);
}

}  // namespace monolith::core
