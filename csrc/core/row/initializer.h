// Values of a new row.
#pragma once

#include <cstddef>
#include <memory>

#include "core/table/table_config.h"

namespace monolith::core {

// Immutable: may be called from any thread.
class Initializer {
 public:
  virtual ~Initializer() = default;

  [[nodiscard]] virtual std::size_t dim() const = 0;
  virtual void Initialize(float* values) const = 0;
};

// random_uniform draws from [minval, maxval) with a generator per thread, each with the default
// seed of the Mersenne twister: what one thread draws is the same in every run.
// Throws std::invalid_argument if no member is set or the range is empty.
[[nodiscard]] std::unique_ptr<Initializer> MakeInitializer(const InitializerConfig& config,
                                                           std::size_t dim);

}  // namespace monolith::core
