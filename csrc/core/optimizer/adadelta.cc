#include <cmath>

#include "core/optimizer/factories.h"
#include "core/optimizer/stateful.h"
#include "core/system/simd.h"

namespace monolith::core {
namespace {

MONOLITH_SIMD
void AdadeltaStep(std::size_t dim, float learning_rate, float weight_decay, float ratio,
                  float epsilon, const float* MONOLITH_RESTRICT grad, float* MONOLITH_RESTRICT w,
                  float* MONOLITH_RESTRICT accum, float* MONOLITH_RESTRICT accum_update) {
  for (std::size_t i = 0; i < dim; ++i) {
    const float h = grad[i] + weight_decay * w[i];
    accum[i] = ratio * accum[i] + (1.0f - ratio) * h * h;
    const float update = std::sqrt(accum_update[i] + epsilon) / std::sqrt(accum[i] + epsilon) * h;
    w[i] -= learning_rate * update;
    accum_update[i] = ratio * accum_update[i] + (1.0f - ratio) * update * update;
  }
}

class Adadelta final : public StatefulOptimizer {
 public:
  Adadelta(const AdadeltaConfig& config, std::size_t dim)
      : StatefulOptimizer(/*dump_member=*/6, dim,
                          {{"accum", 1, StateField::Kind::kFloats, dim, 0.0f},
                           {"accum_update", 2, StateField::Kind::kFloats, dim, 0.0f}}),
        weight_decay_(config.weight_decay_factor),
        ratio_(config.averaging_ratio),
        epsilon_(config.epsilon) {}

  void Step(float* w, std::byte* state, const float* grad, float learning_rate,
            std::int64_t) const override {
    AdadeltaStep(dim(), learning_rate, weight_decay_, ratio_, epsilon_, grad, w, Floats(state, 0),
                 Floats(state, 1));
  }

 private:
  float weight_decay_;
  float ratio_;
  float epsilon_;
};

}  // namespace

std::unique_ptr<Optimizer> MakeAdadelta(const AdadeltaConfig& config, std::size_t dim) {
  RequireFraction("averaging_ratio", config.averaging_ratio);
  RequireNotNegative("epsilon", config.epsilon);
  return std::make_unique<Adadelta>(config, dim);
}

}  // namespace monolith::core
