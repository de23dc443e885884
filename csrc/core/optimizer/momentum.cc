#include "core/optimizer/factories.h"
#include "core/optimizer/stateful.h"
#include "core/system/simd.h"

namespace monolith::core {
namespace {

MONOLITH_SIMD
void MomentumStep(std::size_t dim, float learning_rate, float weight_decay, float mu,
                  const float* MONOLITH_RESTRICT grad, float* MONOLITH_RESTRICT w,
                  float* MONOLITH_RESTRICT n) {
  for (std::size_t i = 0; i < dim; ++i) {
    n[i] = mu * n[i] - learning_rate * (grad[i] + weight_decay * w[i]);
    w[i] += n[i];
  }
}

MONOLITH_SIMD
void NesterovStep(std::size_t dim, float learning_rate, float weight_decay, float mu,
                  const float* MONOLITH_RESTRICT grad, float* MONOLITH_RESTRICT w,
                  float* MONOLITH_RESTRICT n) {
  for (std::size_t i = 0; i < dim; ++i) {
    const float before = n[i];
    n[i] = mu * before - learning_rate * (grad[i] + weight_decay * w[i]);
    w[i] += -mu * before + (1.0f + mu) * n[i];
  }
}

class Momentum final : public StatefulOptimizer {
 public:
  Momentum(const MomentumConfig& config, std::size_t dim)
      : StatefulOptimizer(/*dump_member=*/9, dim, {{"n", 1, StateField::Kind::kFloats, dim, 0.0f}}),
        weight_decay_(config.weight_decay_factor),
        mu_(config.momentum),
        nesterov_(config.use_nesterov) {}

  void Step(float* w, std::byte* state, const float* grad, float learning_rate,
            std::int64_t) const override {
    const auto step = nesterov_ ? NesterovStep : MomentumStep;
    step(dim(), learning_rate, weight_decay_, mu_, grad, w, Floats(state, 0));
  }

 private:
  float weight_decay_;
  float mu_;
  bool nesterov_;
};

}  // namespace

std::unique_ptr<Optimizer> MakeMomentum(const MomentumConfig& config, std::size_t dim) {
  return std::make_unique<Momentum>(config, dim);
}

}  // namespace monolith::core
