// The one thing that all sums of rows do.
#pragma once

#include <cstdint>

#include "core/system/simd.h"

namespace monolith::ops {

// Adds a row of `dim` floats to `sum`, which is another one.
inline void AddRow(const float* MONOLITH_RESTRICT row, std::int64_t dim,
                   float* MONOLITH_RESTRICT sum) {
  for (std::int64_t d = 0; d < dim; ++d) sum[d] += row[d];
}

}  // namespace monolith::ops
