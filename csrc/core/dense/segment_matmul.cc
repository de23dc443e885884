#include "core/dense/segment_matmul.h"

#include <algorithm>

#include "core/system/simd.h"

namespace monolith::core {
namespace {

// The loops are templates that get inlined into one plain function per type; see simd.h.

template <typename T>
[[gnu::always_inline]] inline void AddScaled(std::size_t n, T scale,
                                             const T* MONOLITH_RESTRICT values,
                                             T* MONOLITH_RESTRICT out) {
  for (std::size_t i = 0; i < n; ++i) out[i] += scale * values[i];
}

// Lanes fix the order of the sum, whatever the register width.
template <typename T>
[[gnu::always_inline]] inline T Dot(std::size_t n, const T* MONOLITH_RESTRICT a,
                                    const T* MONOLITH_RESTRICT b) {
  constexpr std::size_t kLanes = 8;
  T lanes[kLanes] = {};
  std::size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (std::size_t k = 0; k < kLanes; ++k) lanes[k] += a[i + k] * b[i + k];
  }
  for (std::size_t k = 0; i + k < n; ++k) lanes[k] += a[i + k] * b[i + k];
  T sum = 0;
  for (const T lane : lanes) sum += lane;
  return sum;
}

template <typename T>
[[gnu::always_inline]] inline void Forward(const Segments& segments, std::size_t rows,
                                           const T* input, const T* weight, T* out) {
  const std::size_t units = segments.units;
  std::fill_n(out, rows * segments.width(), T(0));
  for (std::size_t r = 0; r < rows; ++r, input += segments.dim(), out += segments.width()) {
    for (std::size_t j = 0; j < segments.size(); ++j) {
      for (std::size_t i = segments.starts[j]; i < segments.starts[j + 1]; ++i) {
        AddScaled(units, input[i], weight + i * units, out + j * units);
      }
    }
  }
}

template <typename T>
[[gnu::always_inline]] inline void InputGradient(const Segments& segments, std::size_t rows,
                                                 const T* grad, const T* weight, T* out) {
  const std::size_t units = segments.units;
  for (std::size_t r = 0; r < rows; ++r, grad += segments.width(), out += segments.dim()) {
    for (std::size_t j = 0; j < segments.size(); ++j) {
      for (std::size_t i = segments.starts[j]; i < segments.starts[j + 1]; ++i) {
        out[i] = Dot(units, grad + j * units, weight + i * units);
      }
    }
  }
}

template <typename T>
[[gnu::always_inline]] inline void WeightGradient(const Segments& segments, std::size_t segment,
                                                  std::size_t rows, const T* grad, const T* input,
                                                  T* out) {
  const std::size_t units = segments.units;
  const std::size_t begin = segments.starts[segment];
  const std::size_t columns = segments.starts[segment + 1] - begin;
  std::fill_n(out, columns * units, T(0));
  grad += segment * units;
  input += begin;
  for (std::size_t r = 0; r < rows; ++r, grad += segments.width(), input += segments.dim()) {
    for (std::size_t i = 0; i < columns; ++i) AddScaled(units, input[i], grad, out + i * units);
  }
}

}  // namespace

MONOLITH_SIMD void SegmentMatmul(const Segments& segments, std::size_t rows, const float* input,
                                 const float* weight, float* out) {
  Forward(segments, rows, input, weight, out);
}

MONOLITH_SIMD void SegmentMatmul(const Segments& segments, std::size_t rows, const double* input,
                                 const double* weight, double* out) {
  Forward(segments, rows, input, weight, out);
}

MONOLITH_SIMD void SegmentMatmulInputGradient(const Segments& segments, std::size_t rows,
                                              const float* grad, const float* weight, float* out) {
  InputGradient(segments, rows, grad, weight, out);
}

MONOLITH_SIMD void SegmentMatmulInputGradient(const Segments& segments, std::size_t rows,
                                              const double* grad, const double* weight,
                                              double* out) {
  InputGradient(segments, rows, grad, weight, out);
}

MONOLITH_SIMD void SegmentMatmulWeightGradient(const Segments& segments, std::size_t segment,
                                               std::size_t rows, const float* grad,
                                               const float* input, float* out) {
  WeightGradient(segments, segment, rows, grad, input, out);
}

MONOLITH_SIMD void SegmentMatmulWeightGradient(const Segments& segments, std::size_t segment,
                                               std::size_t rows, const double* grad,
                                               const double* input, double* out) {
  WeightGradient(segments, segment, rows, grad, input, out);
}

}  // namespace monolith::core
