#include <cmath>

#include "core/optimizer/factories.h"
#include "core/optimizer/stateful.h"
#include "core/system/simd.h"

// Both divide by the learning rate: a step with rate 0 changes nothing, neither weight nor state.

namespace monolith::core {
namespace {

// The state's part of a step, common to both.
MONOLITH_SIMD
void Accumulate(std::size_t dim, float learning_rate, const float* MONOLITH_RESTRICT grad,
                const float* MONOLITH_RESTRICT w, float* MONOLITH_RESTRICT norm,
                float* MONOLITH_RESTRICT zero) {
  for (std::size_t i = 0; i < dim; ++i) {
    const float n = norm[i] + grad[i] * grad[i];
    const float sigma = (std::sqrt(n) - std::sqrt(norm[i])) / learning_rate;
    zero[i] += grad[i] - sigma * w[i];
    norm[i] = n;
  }
}

// The proximal step with the usual sign rule: l1 always shrinks.
MONOLITH_SIMD
void SolveFtrl(std::size_t dim, float learning_rate, float beta, float l1, float l2,
               const float* MONOLITH_RESTRICT norm, const float* MONOLITH_RESTRICT zero,
               float* MONOLITH_RESTRICT w) {
  for (std::size_t i = 0; i < dim; ++i) {
    const float z = zero[i];
    const float shrunk = (z < 0.0f ? -l1 : l1) - z;
    const float denominator = std::sqrt(norm[i]) + beta + l2 * learning_rate;
    const float solution = learning_rate * shrunk / denominator;
    w[i] = std::abs(z) > l1 && denominator > 0.0f ? solution : 0.0f;
  }
}

MONOLITH_SIMD
void SolveGroupFtrl(std::size_t dim, float learning_rate, float beta, float l1, float l2,
                    const float* MONOLITH_RESTRICT norm, const float* MONOLITH_RESTRICT zero,
                    float* MONOLITH_RESTRICT w) {
  float square_sum = 0.0f;
  for (std::size_t i = 0; i < dim; ++i) square_sum += zero[i] * zero[i];
  const float length = std::sqrt(square_sum);
  if (!(length > l1)) {
    for (std::size_t i = 0; i < dim; ++i) w[i] = 0.0f;
    return;
  }
  const float shrink = (l1 - length) / length;
  for (std::size_t i = 0; i < dim; ++i) {
    const float denominator = beta + std::sqrt(norm[i]) + l2 * learning_rate;
    const float solution = learning_rate * zero[i] * shrink / denominator;
    w[i] = denominator > 0.0f ? solution : 0.0f;
  }
}

using Solve = void (*)(std::size_t, float, float, float, float, const float*, const float*, float*);

// Group FTRL drops or keeps a whole row: the length of `zero` is held against l1, not each element.
class Ftrl final : public StatefulOptimizer {
 public:
  template <typename Config>
  Ftrl(std::uint32_t dump_member, Solve solve, const Config& config, std::size_t dim)
      : StatefulOptimizer(
            dump_member, dim,
            {{"norm", 2, StateField::Kind::kFloats, dim, config.initial_accumulator_value},
             {"zero", 1, StateField::Kind::kFloats, dim, 0.0f}}),
        solve_(solve),
        beta_(config.beta),
        l1_(config.l1_regularization_strength),
        l2_(config.l2_regularization_strength) {
    RequireNotNegative("initial_accumulator_value", config.initial_accumulator_value);
    RequireNotNegative("beta", beta_);
    RequireNotNegative("l1_regularization_strength", l1_);
    RequireNotNegative("l2_regularization_strength", l2_);
  }

  void Step(float* w, std::byte* state, const float* grad, float learning_rate,
            std::int64_t) const override {
    if (learning_rate == 0.0f) return;
    float* const norm = Floats(state, 0);
    float* const zero = Floats(state, 1);
    Accumulate(dim(), learning_rate, grad, w, norm, zero);
    solve_(dim(), learning_rate, beta_, l1_, l2_, norm, zero, w);
  }

 private:
  Solve solve_;
  float beta_;
  float l1_;
  float l2_;
};

}  // namespace

std::unique_ptr<Optimizer> MakeFtrl(const FtrlConfig& config, std::size_t dim) {
  return std::make_unique<Ftrl>(/*dump_member=*/3, SolveFtrl, config, dim);
}

std::unique_ptr<Optimizer> MakeGroupFtrl(const GroupFtrlConfig& config, std::size_t dim) {
  return std::make_unique<Ftrl>(/*dump_member=*/13, SolveGroupFtrl, config, dim);
}

}  // namespace monolith::core
