#include <algorithm>
#include <cmath>

#include "core/optimizer/factories.h"
#include "core/optimizer/stateful.h"

namespace monolith::core {
namespace {

// Adagrad with one accumulator per row, followed by a group lasso that zeroes the row as a whole.
class GroupAdagrad final : public StatefulOptimizer {
 public:
  GroupAdagrad(const GroupAdagradConfig& config, std::size_t dim)
      : StatefulOptimizer(/*dump_member=*/15, dim,
                          {{"grad_square_sum", 1, StateField::Kind::kFloats, 1,
                            config.initial_accumulator_value}}),
        beta_(config.beta),
        l2_(config.l2_regularization_strength),
        weight_decay_(config.weight_decay_factor) {}

  void Step(float* w, std::byte* state, const float* grad, float learning_rate,
            std::int64_t) const override {
    float* const accumulated = Floats(state, 0);
    float greatest_square = 0.0f;
    for (std::size_t i = 0; i < dim(); ++i) {
      const float h = grad[i] + weight_decay_ * w[i];
      greatest_square = std::max(greatest_square, h * h);
    }
    *accumulated += greatest_square;
    const float scale = beta_ + std::sqrt(*accumulated);
    // The formula divides by both. Their limits are: no gradient so far, no step; no rate, no step.
    if (scale == 0.0f || learning_rate == 0.0f) return;
    const float rate = learning_rate / scale;

    // z = h - w / rate is needed twice. It is computed twice, which is cheaper than keeping it.
    float square_sum = 0.0f;
    for (std::size_t i = 0; i < dim(); ++i) {
      const float z = grad[i] + weight_decay_ * w[i] - w[i] / rate;
      square_sum += z * z;
    }
    const float length = std::sqrt(square_sum);
    if (length <= l2_) {  // Also where both are 0.
      std::fill_n(w, dim(), 0.0f);
      return;
    }
    const float shrunk_rate = -rate * (length - l2_) / length;
    for (std::size_t i = 0; i < dim(); ++i) {
      w[i] = shrunk_rate * (grad[i] + weight_decay_ * w[i] - w[i] / rate);
    }
  }

 private:
  float beta_;
  float l2_;
  float weight_decay_;
};

}  // namespace

std::unique_ptr<Optimizer> MakeGroupAdagrad(const GroupAdagradConfig& config, std::size_t dim) {
  RequireNotNegative("initial_accumulator_value", config.initial_accumulator_value);
  RequireNotNegative("beta", config.beta);
  RequireNotNegative("l2_regularization_strength", config.l2_regularization_strength);
  return std::make_unique<GroupAdagrad>(config, dim);
}

}  // namespace monolith::core
