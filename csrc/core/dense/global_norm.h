// Sum of squares and scaling of plain arrays, the two halves of clipping by a global norm.
#pragma once

#include <cstddef>

namespace monolith::core {

// Returns the sum of the squares, computed in double and always in the same order, so that a value
// depends neither on the machine nor on how the caller spreads several arrays over threads.
[[nodiscard]] double SumOfSquares(const float* values, std::size_t n);
[[nodiscard]] double SumOfSquares(const double* values, std::size_t n);

// Writes values[i] * scale to out[i]. The arrays must not overlap.
void Scale(const float* values, std::size_t n, float scale, float* out);
void Scale(const double* values, std::size_t n, double scale, double* out);

}  // namespace monolith::core
