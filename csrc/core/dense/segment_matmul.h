// One matrix product per segment of columns, side by side in one result.
#pragma once

#include <cstddef>
#include <vector>

namespace monolith::core {

// `segments` consecutive groups of columns of an input with dim() columns. Segment j covers the
// columns starts[j] to starts[j + 1] and is multiplied by the same rows of a weight [dim, units].
struct Segments {
  std::vector<std::size_t> starts;  // One more than there are segments; the first is 0.
  std::size_t units = 0;            // Columns of the weight.

  [[nodiscard]] std::size_t size() const { return starts.size() - 1; }
  [[nodiscard]] std::size_t dim() const { return starts.back(); }
  [[nodiscard]] std::size_t width() const { return size() * units; }  // Columns of the result.
};

// All matrices are dense and row-major. All functions are thread-safe for disjoint outputs.

// out[r, j] = input[r, segment j] x weight[segment j], for `rows` rows; out is [rows, width].
void SegmentMatmul(const Segments& segments, std::size_t rows, const float* input,
                   const float* weight, float* out);
void SegmentMatmul(const Segments& segments, std::size_t rows, const double* input,
                   const double* weight, double* out);

// Gradient for the input, [rows, dim], from the gradient of the result, [rows, width].
void SegmentMatmulInputGradient(const Segments& segments, std::size_t rows, const float* grad,
                                const float* weight, float* out);
void SegmentMatmulInputGradient(const Segments& segments, std::size_t rows, const double* grad,
                                const double* weight, double* out);

// Gradient for the weight rows of segment `segment`, [segment's columns, units], summed over all
// `rows` rows of the input. `out` is the place of the segment's first row.
void SegmentMatmulWeightGradient(const Segments& segments, std::size_t segment, std::size_t rows,
                                 const float* grad, const float* input, float* out);
void SegmentMatmulWeightGradient(const Segments& segments, std::size_t segment, std::size_t rows,
                                 const double* grad, const double* input, double* out);

}  // namespace monolith::core
