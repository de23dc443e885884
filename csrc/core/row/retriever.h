// How training reads values that serving will see compressed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "core/table/table_config.h"

namespace monolith::core {

// May be called from any thread.
class Retriever {
 public:
  virtual ~Retriever() = default;

  [[nodiscard]] virtual std::size_t dim() const = 0;
  // What a lookup gives for the weights `w`.
  virtual void Forward(const float* w, float* values) const = 0;
  // The gradient with respect to `w` from the one with respect to Forward's values. The buffers do
  // not overlap.
  virtual void Backward(const float* w, const float* grad, std::int64_t global_step,
                        float* w_grad) const = 0;
};

// Chosen by the compressor that serving will use: fixed_r8 reads the values as rounded as serving
// will, and passes gradients on; one_bit is a hash-net, a tanh that grows steeper with the steps.
// Everything else reads the weights as they are, for which there is no retriever: nullptr.
// Throws std::invalid_argument if a setting is out of range.
[[nodiscard]] std::unique_ptr<Retriever> MakeRetriever(
    const std::optional<CompressorConfig>& config, std::size_t dim);

}  // namespace monolith::core
