#include "core/optimizer/factories.h"
#include "core/optimizer/stateful.h"
#include "core/system/simd.h"

namespace monolith::core {
namespace {

MONOLITH_SIMD
void Average(std::size_t dim, float mu, const float* MONOLITH_RESTRICT grad,
             float* MONOLITH_RESTRICT w) {
  for (std::size_t i = 0; i < dim; ++i) w[i] = mu * w[i] + (1.0f - mu) * grad[i];
}

// Follows what arrives as the gradient; no learning rate, no state, nothing to dump.
class MovingAverage final : public StatefulOptimizer {
 public:
  MovingAverage(const MovingAverageConfig& config, std::size_t dim)
      : StatefulOptimizer(kNoDump, dim, {}), mu_(config.momentum) {}

  void Step(float* w, std::byte*, const float* grad, float, std::int64_t) const override {
    Average(dim(), mu_, grad, w);
  }

 private:
  float mu_;
};

}  // namespace

std::unique_ptr<Optimizer> MakeMovingAverage(const MovingAverageConfig& config, std::size_t dim) {
  return std::make_unique<MovingAverage>(config, dim);
}

}  // namespace monolith::core
