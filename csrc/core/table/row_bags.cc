#include "core/table/row_bags.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/system/simd.h"

namespace monolith::core {
namespace {

// So many rows are looked up at once: enough to hide the way to memory, few enough to stay in the
// cache until they are added up.
constexpr std::size_t kRowsAtOnce = 256;

MONOLITH_SIMD
void AddRows(std::size_t n, std::size_t dim, const float* MONOLITH_RESTRICT rows,
             float* MONOLITH_RESTRICT sum) {
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = 0; j < dim; ++j) sum[j] += rows[i * dim + j];
  }
}

MONOLITH_SIMD
void Scale(std::size_t dim, float factor, float* row) {
  for (std::size_t j = 0; j < dim; ++j) row[j] *= factor;
}

MONOLITH_SIMD
void Fill(std::size_t n, std::size_t dim, float factor, const float* MONOLITH_RESTRICT row,
          float* MONOLITH_RESTRICT rows) {
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = 0; j < dim; ++j) rows[i * dim + j] = factor * row[j];
  }
}

float Factor(BagCombiner combiner, std::int64_t num_ids) {
  const auto n = static_cast<float>(num_ids);
  switch (combiner) {
    case BagCombiner::kMean:
      return 1.0f / n;
    case BagCombiner::kSqrtN:
      return 1.0f / std::sqrt(n);
    default:
      return 1.0f;
  }
}

}  // namespace

BagCombiner ParseBagCombiner(std::string_view name) {
  if (name == "sum") return BagCombiner::kSum;
  if (name == "mean") return BagCombiner::kMean;
  if (name == "sqrtn") return BagCombiner::kSqrtN;
  throw std::invalid_argument("The combiner must be 'sum', 'mean' or 'sqrtn', got '" +
                              std::string(name) + "'.");
}

void LookupBags(const EmbeddingTable& table, const std::int64_t* ids, const std::int64_t* splits,
                std::size_t first, std::size_t last, BagCombiner combiner, float* bags) {
  const std::size_t dim = table.dim();
  std::fill(bags + first * dim, bags + last * dim, 0.0f);
  std::vector<float> rows(kRowsAtOnce * dim);
  std::size_t bag = first;
  for (std::int64_t begin = splits[first]; begin < splits[last];) {
    const std::int64_t end = std::min(splits[last], begin + static_cast<std::int64_t>(kRowsAtOnce));
    table.Lookup(ids + begin, static_cast<std::size_t>(end - begin), rows.data());
    for (std::int64_t i = begin; i < end;) {
      while (splits[bag + 1] <= i) ++bag;
      const std::int64_t here = std::min(end, splits[bag + 1]);
      AddRows(static_cast<std::size_t>(here - i), dim, rows.data() + (i - begin) * dim,
              bags + bag * dim);
      i = here;
    }
    begin = end;
  }
  if (combiner == BagCombiner::kSum) return;
  for (std::size_t b = first; b < last; ++b) {
    const std::int64_t num_ids = splits[b + 1] - splits[b];
    if (num_ids > 1) Scale(dim, Factor(combiner, num_ids), bags + b * dim);
  }
}

void SpreadBags(const std::int64_t* splits, std::size_t first, std::size_t last, std::size_t dim,
                BagCombiner combiner, const float* bags, float* rows) {
  for (std::size_t b = first; b < last; ++b) {
    const std::int64_t num_ids = splits[b + 1] - splits[b];
    if (num_ids == 0) continue;
    Fill(static_cast<std::size_t>(num_ids), dim, Factor(combiner, num_ids), bags + b * dim,
         rows + splits[b] * dim);
  }
}

void ShareBags(const std::int64_t* splits, std::size_t num_bags, std::size_t dim,
               BagCombiner combiner, const float* bags, std::uint32_t* bag_of, float* scaled) {
  for (std::size_t b = 0; b < num_bags; ++b) {
    const std::int64_t num_ids = splits[b + 1] - splits[b];
    if (num_ids == 0) continue;
    std::fill(bag_of + splits[b], bag_of + splits[b + 1], static_cast<std::uint32_t>(b));
    Fill(1, dim, Factor(combiner, num_ids), bags + b * dim, scaled + b * dim);
  }
}

}  // namespace monolith::core
