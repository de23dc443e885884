#include "core/dedup.h"

namespace monolith::core {

const DistinctIds& IdSummer::Sum(const std::int64_t* ids, std::size_t n, const float* rows,
                                 std::size_t dim) {
  numbers_.Reset(n);
  distinct_.counts.clear();
  distinct_.counts.reserve(n);
  distinct_.rows.clear();
  distinct_.rows.reserve(n * dim);
  for (std::size_t i = 0; i < n; ++i) {
    const std::uint32_t number = numbers_.Add(ids[i]);
    const float* row = rows + i * dim;
    if (number == distinct_.counts.size()) {
      distinct_.counts.push_back(1);
      distinct_.rows.insert(distinct_.rows.end(), row, row + dim);
      continue;
    }
    float* sum = distinct_.rows.data() + number * dim;
    for (std::size_t d = 0; d < dim; ++d) sum[d] += row[d];
    ++distinct_.counts[number];
  }
  distinct_.ids = numbers_.ids();
  return distinct_;
}

}  // namespace monolith::core
