#include <cstring>
#include <stdexcept>
#include <string>

#include "core/optimizer/factories.h"
#include "core/optimizer/stateful.h"

namespace monolith::core {
namespace {

// Estimates how many steps lie between two occurrences of an id. The gradient plays no part; the
// state is the step of the last occurrence.
class BatchSoftmax final : public StatefulOptimizer {
 public:
  BatchSoftmax()
      : StatefulOptimizer(/*dump_member=*/14, /*dim=*/1,
                          {{"global_step", 1, StateField::Kind::kInt64, 1, 0.0f}}) {}

  void Step(float* w, std::byte* state, const float*, float learning_rate,
            std::int64_t global_step) const override {
    if (global_step < 0) {
      throw std::invalid_argument("global_step=" + std::to_string(global_step) +
                                  " is negative, please investigate!");
    }
    std::int64_t last_step = 0;
    std::memcpy(&last_step, state, sizeof(last_step));
    // In double: a restored last step may be any number, and the difference must not overflow.
    const double interval = static_cast<double>(global_step) - static_cast<double>(last_step);
    w[0] = (1.0f - learning_rate) * w[0] + learning_rate * static_cast<float>(interval);
    std::memcpy(state, &global_step, sizeof(global_step));
  }
};

}  // namespace

std::unique_ptr<Optimizer> MakeBatchSoftmax(const BatchSoftmaxConfig&, std::size_t dim) {
  if (dim != 1) {
    throw std::invalid_argument("batch_softmax needs a segment of dim 1, got " +
                                std::to_string(dim) + ".");
  }
  return std::make_unique<BatchSoftmax>();
}

}  // namespace monolith::core
