// Equal ids of a batch brought together before they reach a table.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/id_numbers.h"

namespace monolith::core {

// The distinct ids of a batch, in the order in which they first came.
struct DistinctIds {
  std::vector<std::int64_t> ids;
  std::vector<float> rows;            // [ids, dim]: the sum over the occurrences.
  std::vector<std::uint32_t> counts;  // How often each id came.
};

// Keeps its memory from batch to batch: that of a large one is costly to get anew from the system.
class IdSummer {
 public:
  // Sums `rows` [n, dim] over equal ids. The result is valid until the next call.
  const DistinctIds& Sum(const std::int64_t* ids, std::size_t n, const float* rows,
                         std::size_t dim);

 private:
  IdNumbers numbers_{0};
  DistinctIds distinct_;
};

}  // namespace monolith::core
