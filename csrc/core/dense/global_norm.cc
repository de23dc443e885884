#include "core/dense/global_norm.h"

#include "core/system/simd.h"

namespace monolith::core {
namespace {

// One partial sum per lane of the widest vector registers, two of them to hide latency. Lane k
// holds elements k, k + kLanes, ...: the order is the same whatever the register width.
constexpr std::size_t kLanes = 16;

template <typename T>
[[gnu::always_inline]] inline double SumOfSquaresInLanes(const T* MONOLITH_RESTRICT values,
                                                         std::size_t n) {
  double lanes[kLanes] = {};
  std::size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (std::size_t k = 0; k < kLanes; ++k) {
      const double value = values[i + k];
      lanes[k] += value * value;
    }
  }
  for (std::size_t k = 0; i + k < n; ++k) {
    const double value = values[i + k];
    lanes[k] += value * value;
  }
  double sum = 0;
  for (const double lane : lanes) sum += lane;
  return sum;
}

template <typename T>
[[gnu::always_inline]] inline void ScaleAll(const T* MONOLITH_RESTRICT values, std::size_t n,
                                            T scale, T* MONOLITH_RESTRICT out) {
  for (std::size_t i = 0; i < n; ++i) out[i] = values[i] * scale;
}

}  // namespace

MONOLITH_SIMD double SumOfSquares(const float* values, std::size_t n) {
  return SumOfSquaresInLanes(values, n);
}

MONOLITH_SIMD double SumOfSquares(const double* values, std::size_t n) {
  return SumOfSquaresInLanes(values, n);
}

MONOLITH_SIMD void Scale(const float* values, std::size_t n, float scale, float* out) {
  ScaleAll(values, n, scale, out);
}

MONOLITH_SIMD void Scale(const double* values, std::size_t n, double scale, double* out) {
  ScaleAll(values, n, scale, out);
}

}  // namespace monolith::core
