// Update steps of the dense optimizers, over plain arrays.
#pragma once

#include <cstddef>

namespace monolith::core {

// Adam-like step whose second moment is an average over the steps seen so far: `c` counts them,
// with the same decay as `v`, so v / c needs no bias correction. `T` is float or double.
template <typename T>
struct AdamomSettings {
  T learning_rate;
  T ada_decay;
  T mom_decay;
  T epsilon;
  T weight_decay;
};

// For each of the `n` elements, with h = grad + weight_decay * var:
//   m = mom_decay * m + (1 - mom_decay) * h
//   v = ada_decay * v + h^2
//   c = ada_decay * c + 1
//   var -= learning_rate * m / sqrt(v / c + epsilon)
// The arrays must not overlap. Thread-safe for disjoint arrays.
void ApplyAdamom(const AdamomSettings<float>& settings, std::size_t n, const float* grad,
                 float* var, float* m, float* v, float* c);
void ApplyAdamom(const AdamomSettings<double>& settings, std::size_t n, const double* grad,
                 double* var, double* m, double* v, double* c);

// RMSProp with momentum: the learning rate is inside the momentum `m`.
template <typename T>
struct RmspropSettings {
  T learning_rate;
  T beta1;
  T beta2;
  T epsilon;
  T weight_decay;
};

// For each of the `n` elements, with h = grad + weight_decay * var:
//   v = beta2 * v + (1 - beta2) * h^2
//   m = beta1 * m + learning_rate * h / sqrt(v + epsilon)
//   var -= m
// The arrays must not overlap. Thread-safe for disjoint arrays.
void ApplyRmsprop(const RmspropSettings<float>& settings, std::size_t n, const float* grad,
                  float* var, float* m, float* v);
void ApplyRmsprop(const RmspropSettings<double>& settings, std::size_t n, const double* grad,
                  double* var, double* m, double* v);

// As ApplyRmsprop, with a sum instead of an average, and epsilon outside the root:
//   v = beta2 * v + h^2
//   m = beta1 * m + learning_rate * h / (sqrt(v) + epsilon)
//   var -= m
void ApplyRmspropV2(const RmspropSettings<float>& settings, std::size_t n, const float* grad,
                    float* var, float* m, float* v);
void ApplyRmspropV2(const RmspropSettings<double>& settings, std::size_t n, const double* grad,
                    double* var, double* m, double* v);

}  // namespace monolith::core
