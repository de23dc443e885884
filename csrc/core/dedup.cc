#include "core/dedup.h"

#include "core/hash.h"

namespace monolith::core {

DistinctIds SumByDistinctId(const std::int64_t* ids, std::size_t n, const float* rows,
                            std::size_t dim) {
  // A flat table of positions in `distinct.ids`, at most half full.
  constexpr std::uint32_t kFree = 0xFFFFFFFFu;
  std::size_t slots = 16;
  while (slots < 2 * n) slots *= 2;
  std::vector<std::uint32_t> table(slots, kFree);

  DistinctIds distinct;
  distinct.ids.reserve(n);
  distinct.counts.reserve(n);
  distinct.rows.reserve(n * dim);
  for (std::size_t i = 0; i < n; ++i) {
    std::size_t slot = HashId(ids[i]) & (slots - 1);
    while (table[slot] != kFree && distinct.ids[table[slot]] != ids[i]) {
      slot = (slot + 1) & (slots - 1);
    }
    const float* row = rows + i * dim;
    if (table[slot] == kFree) {
      table[slot] = static_cast<std::uint32_t>(distinct.ids.size());
      distinct.ids.push_back(ids[i]);
      distinct.counts.push_back(1);
      distinct.rows.insert(distinct.rows.end(), row, row + dim);
      continue;
    }
    float* sum = distinct.rows.data() + table[slot] * dim;
    for (std::size_t d = 0; d < dim; ++d) sum[d] += row[d];
    ++distinct.counts[table[slot]];
  }
  return distinct;
}

}  // namespace monolith::core
