#include "core/dense/dense_optimizer.h"

#include <cmath>

#include "core/system/simd.h"

namespace monolith::core {
namespace {

// The loops are templates that get inlined into one plain function per type, since the choice of
// instructions is made per function (see simd.h). Settings are copied first: a store to an array
// could otherwise change them as far as the compiler knows.

template <typename T>
[[gnu::always_inline]] inline void Adamom(const AdamomSettings<T> s, std::size_t n,
                                          const T* MONOLITH_RESTRICT grad, T* MONOLITH_RESTRICT var,
                                          T* MONOLITH_RESTRICT m, T* MONOLITH_RESTRICT v,
                                          T* MONOLITH_RESTRICT c) {
  const T fresh = T(1) - s.mom_decay;
  for (std::size_t i = 0; i < n; ++i) {
    const T h = grad[i] + s.weight_decay * var[i];
    m[i] = s.mom_decay * m[i] + fresh * h;
    v[i] = s.ada_decay * v[i] + h * h;
    c[i] = s.ada_decay * c[i] + T(1);
    var[i] -= s.learning_rate * m[i] / std::sqrt(v[i] / c[i] + s.epsilon);
  }
}

template <typename T>
[[gnu::always_inline]] inline void Rmsprop(const RmspropSettings<T> s, std::size_t n,
                                           const T* MONOLITH_RESTRICT grad,
                                           T* MONOLITH_RESTRICT var, T* MONOLITH_RESTRICT m,
                                           T* MONOLITH_RESTRICT v) {
  const T fresh = T(1) - s.beta2;
  for (std::size_t i = 0; i < n; ++i) {
    const T h = grad[i] + s.weight_decay * var[i];
    v[i] = s.beta2 * v[i] + fresh * (h * h);
    m[i] = s.beta1 * m[i] + s.learning_rate * h / std::sqrt(v[i] + s.epsilon);
    var[i] -= m[i];
  }
}

template <typename T>
[[gnu::always_inline]] inline void RmspropV2(const RmspropSettings<T> s, std::size_t n,
                                             const T* MONOLITH_RESTRICT grad,
                                             T* MONOLITH_RESTRICT var, T* MONOLITH_RESTRICT m,
                                             T* MONOLITH_RESTRICT v) {
  for (std::size_t i = 0; i < n; ++i) {
    const T h = grad[i] + s.weight_decay * var[i];
    v[i] = s.beta2 * v[i] + h * h;
    m[i] = s.beta1 * m[i] + s.learning_rate * h / (std::sqrt(v[i]) + s.epsilon);
    var[i] -= m[i];
  }
}

}  // namespace

MONOLITH_SIMD void ApplyAdamom(const AdamomSettings<float>& settings, std::size_t n,
                               const float* grad, float* var, float* m, float* v, float* c) {
  Adamom(settings, n, grad, var, m, v, c);
}

MONOLITH_SIMD void ApplyAdamom(const AdamomSettings<double>& settings, std::size_t n,
                               const double* grad, double* var, double* m, double* v, double* c) {
  Adamom(settings, n, grad, var, m, v, c);
}

MONOLITH_SIMD void ApplyRmsprop(const RmspropSettings<float>& settings, std::size_t n,
                                const float* grad, float* var, float* m, float* v) {
  Rmsprop(settings, n, grad, var, m, v);
}

MONOLITH_SIMD void ApplyRmsprop(const RmspropSettings<double>& settings, std::size_t n,
                                const double* grad, double* var, double* m, double* v) {
  Rmsprop(settings, n, grad, var, m, v);
}

MONOLITH_SIMD void ApplyRmspropV2(const RmspropSettings<float>& settings, std::size_t n,
                                  const float* grad, float* var, float* m, float* v) {
  RmspropV2(settings, n, grad, var, m, v);
}

MONOLITH_SIMD void ApplyRmspropV2(const RmspropSettings<double>& settings, std::size_t n,
                                  const double* grad, double* var, double* m, double* v) {
  RmspropV2(settings, n, grad, var, m, v);
}

}  // namespace monolith::core
