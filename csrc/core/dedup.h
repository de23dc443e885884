// Equal ids of a batch brought together before they reach a table.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace monolith::core {

// The distinct ids of a batch, in the order in which they first came.
struct DistinctIds {
  std::vector<std::int64_t> ids;
  std::vector<float> rows;            // [ids, dim]: the sum over the occurrences.
  std::vector<std::uint32_t> counts;  // How often each id came.
};

// Sums `rows` [n, dim] over equal ids.
[[nodiscard]] DistinctIds SumByDistinctId(const std::int64_t* ids, std::size_t n, const float* rows,
                                          std::size_t dim);

}  // namespace monolith::core
