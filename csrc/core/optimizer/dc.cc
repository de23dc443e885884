#include <stdexcept>
#include <utility>

#include "core/optimizer/optimizer.h"
#include "core/system/scratch_floats.h"
#include "core/system/simd.h"

namespace monolith::core {
namespace {

MONOLITH_SIMD
void Compensate(std::size_t dim, float lambda, const float* MONOLITH_RESTRICT grad,
                const float* MONOLITH_RESTRICT w, const float* MONOLITH_RESTRICT latest,
                float* MONOLITH_RESTRICT compensated) {
  for (std::size_t i = 0; i < dim; ++i) {
    compensated[i] = grad[i] + lambda * grad[i] * grad[i] * (w[i] - latest[i]);
  }
}

}  // namespace

DcOptimizer::DcOptimizer(std::unique_ptr<Optimizer> base, float lambda)
    : base_(std::move(base)), lambda_(lambda) {
  if (base_ == nullptr) throw std::invalid_argument("Delayed compensation needs an optimizer.");
}

void DcOptimizer::Step(float* w, std::byte* state, const float* grad, const float* latest,
                       float learning_rate, std::int64_t global_step) const {
  ScratchFloats compensated(base_->dim());
  Compensate(base_->dim(), lambda_, grad, w, latest, compensated.data());
  base_->Step(w, state, compensated.data(), learning_rate, global_step);
}

}  // namespace monolith::core
