#include "core/optimizer/factories.h"
#include "core/optimizer/stateful.h"
#include "core/system/simd.h"

namespace monolith::core {
namespace {

MONOLITH_SIMD_BODY
void SgdRow(std::size_t dim, float learning_rate, const float* MONOLITH_RESTRICT grad,
            float* MONOLITH_RESTRICT w) {
  for (std::size_t i = 0; i < dim; ++i) w[i] -= learning_rate * grad[i];
}

MONOLITH_SIMD
void SgdStep(std::size_t dim, float learning_rate, const float* grad, float* w) {
  SgdRow(dim, learning_rate, grad, w);
}

MONOLITH_SIMD
void SgdSteps(const SegmentRows& rows, std::size_t dim, float learning_rate) {
  for (std::size_t i = 0; i < rows.n; ++i) SgdRow(dim, learning_rate, rows.grad(i), rows.w(i));
}

class Sgd final : public StatefulOptimizer {
 public:
  explicit Sgd(std::size_t dim) : StatefulOptimizer(/*dump_member=*/2, dim, {}) {}

  void Step(float* w, std::byte*, const float* grad, float learning_rate,
            std::int64_t) const override {
    SgdStep(dim(), learning_rate, grad, w);
  }
  void Steps(const SegmentRows& rows, float learning_rate, std::int64_t) const override {
    SgdSteps(rows, dim(), learning_rate);
  }
};

}  // namespace

std::unique_ptr<Optimizer> MakeSgd(const SgdConfig&, std::size_t dim) {
  return std::make_unique<Sgd>(dim);
}

}  // namespace monolith::core
