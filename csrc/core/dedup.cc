#include "core/dedup.h"

#include <utility>

#include "core/id_numbers.h"

namespace monolith::core {

DistinctIds SumByDistinctId(const std::int64_t* ids, std::size_t n, const float* rows,
                            std::size_t dim) {
  IdNumbers numbers(n);
  DistinctIds distinct;
  distinct.counts.reserve(n);
  distinct.rows.reserve(n * dim);
  for (std::size_t i = 0; i < n; ++i) {
    const std::uint32_t number = numbers.Add(ids[i]);
    const float* row = rows + i * dim;
    if (number == distinct.counts.size()) {
      distinct.counts.push_back(1);
      distinct.rows.insert(distinct.rows.end(), row, row + dim);
      continue;
    }
    float* sum = distinct.rows.data() + number * dim;
    for (std::size_t d = 0; d < dim; ++d) sum[d] += row[d];
    ++distinct.counts[number];
  }
  distinct.ids = std::move(numbers).TakeIds();
  return distinct;
}

}  // namespace monolith::core
