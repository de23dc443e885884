// Rows of several ids that are only wanted as their sum or mean, one vector per bag of ids.
//
// The rows of a bag are added up as they are found: a batch with long histories never has all its
// rows in memory at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "core/table/embedding_table.h"

namespace monolith::core {

enum class BagCombiner { kSum, kMean, kSqrtN };

// "sum", "mean", or "sqrtn", which is the sum by the root of the number of ids. Throws
// std::invalid_argument for anything else.
[[nodiscard]] BagCombiner ParseBagCombiner(std::string_view name);

// Bag b has the ids [splits[b], splits[b + 1]) of `ids`. Writes the vectors of the bags
// [first, last) to `bags` [.., dim], whose row 0 is that of bag 0; zeros for bags without ids.
// Several threads may work on different bags of one call.
void LookupBags(const EmbeddingTable& table, const std::int64_t* ids, const std::int64_t* splits,
                std::size_t first, std::size_t last, BagCombiner combiner, float* bags);

// The other way round: the gradient of each id's row, `rows` [.., dim], from those of the bags.
void SpreadBags(const std::int64_t* splits, std::size_t first, std::size_t last, std::size_t dim,
                BagCombiner combiner, const float* bags, float* rows);

// Which bag each id is in, `bag_of` [splits[last] - splits[0]], and the gradients of the bags by an
// id's part in them, `scaled` [.., dim]: the same gradients, without a copy for each id.
void ShareBags(const std::int64_t* splits, std::size_t num_bags, std::size_t dim,
               BagCombiner combiner, const float* bags, std::uint32_t* bag_of, float* scaled);

}  // namespace monolith::core
