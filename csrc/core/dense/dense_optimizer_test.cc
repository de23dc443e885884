#include "core/dense/dense_optimizer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

namespace monolith::core {
namespace {

// One element, with everything that a step changes.
struct Element {
  double var = 0;
  double m = 0;
  double v = 0;
  double c = 0;
};

// The formulas once more, one element at a time and always in double.
void ReferenceAdamom(const AdamomSettings<double>& s, double grad, Element* e) {
  const double h = grad + s.weight_decay * e->var;
  e->m = s.mom_decay * e->m + (1 - s.mom_decay) * h;
  e->v = s.ada_decay * e->v + h * h;
  e->c = s.ada_decay * e->c + 1;
  e->var -= s.learning_rate * e->m / std::sqrt(e->v / e->c + s.epsilon);
}

void ReferenceRmsprop(const RmspropSettings<double>& s, bool v2, double grad, Element* e) {
  const double h = grad + s.weight_decay * e->var;
  e->v = s.beta2 * e->v + (v2 ? 1 : 1 - s.beta2) * h * h;
  const double divisor = v2 ? std::sqrt(e->v) + s.epsilon : std::sqrt(e->v + s.epsilon);
  e->m = s.beta1 * e->m + s.learning_rate * h / divisor;
  e->var -= e->m;
}

double Gradient(std::size_t i, int step) { return std::sin(1.0 + 0.7 * i + 3.1 * step); }

template <typename T>
class DenseOptimizer : public testing::Test {
 protected:
  // Lengths around the widths of vector registers, so that every remainder loop runs.
  static constexpr std::size_t kLengths[] = {0, 1, 3, 4, 7, 8, 15, 16, 17, 31, 33, 100};

  void Start(std::size_t n) {
    elements_.assign(n, Element());
    for (std::size_t i = 0; i < n; ++i) elements_[i].var = 0.5 - 0.01 * i;
    for (auto* array : {&var_, &m_, &v_, &c_, &grad_}) array->assign(n, T(0));
    for (std::size_t i = 0; i < n; ++i) var_[i] = static_cast<T>(elements_[i].var);
  }

  void NextGradient(int step) {
    for (std::size_t i = 0; i < grad_.size(); ++i) grad_[i] = static_cast<T>(Gradient(i, step));
  }

  void ExpectAgreement() const {
    const double tolerance = sizeof(T) == sizeof(float) ? 2e-5 : 1e-12;
    for (std::size_t i = 0; i < var_.size(); ++i) {
      EXPECT_NEAR(var_[i], elements_[i].var, tolerance) << i;
      EXPECT_NEAR(m_[i], elements_[i].m, tolerance) << i;
      EXPECT_NEAR(v_[i], elements_[i].v, tolerance * 10) << i;
      EXPECT_NEAR(c_[i], elements_[i].c, tolerance * 10) << i;
    }
  }

  std::vector<Element> elements_;
  std::vector<T> var_, m_, v_, c_, grad_;
};

using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(DenseOptimizer, Types);

TYPED_TEST(DenseOptimizer, AdamomFollowsItsFormula) {
  using T = TypeParam;
  const AdamomSettings<double> reference = {0.1, 0.99, 0.9, 1e-3, 0.01};
  const AdamomSettings<T> settings = {T(0.1), T(0.99), T(0.9), T(1e-3), T(0.01)};
  for (const std::size_t n : this->kLengths) {
    this->Start(n);
    for (int step = 0; step < 4; ++step) {
      this->NextGradient(step);
      ApplyAdamom(settings, n, this->grad_.data(), this->var_.data(), this->m_.data(),
                  this->v_.data(), this->c_.data());
      for (std::size_t i = 0; i < n; ++i) {
        ReferenceAdamom(reference, Gradient(i, step), &this->elements_[i]);
      }
    }
    this->ExpectAgreement();
  }
}

TYPED_TEST(DenseOptimizer, RmspropFollowsItsFormulas) {
  using T = TypeParam;
  const RmspropSettings<double> reference = {0.01, 0.9, 0.95, 1e-2, 0.01};
  const RmspropSettings<T> settings = {T(0.01), T(0.9), T(0.95), T(1e-2), T(0.01)};
  for (const bool v2 : {false, true}) {
    for (const std::size_t n : this->kLengths) {
      this->Start(n);
      for (int step = 0; step < 4; ++step) {
        this->NextGradient(step);
        T* arrays[] = {this->var_.data(), this->m_.data(), this->v_.data()};
        if (v2) {
          ApplyRmspropV2(settings, n, this->grad_.data(), arrays[0], arrays[1], arrays[2]);
        } else {
          ApplyRmsprop(settings, n, this->grad_.data(), arrays[0], arrays[1], arrays[2]);
        }
        for (std::size_t i = 0; i < n; ++i) {
          ReferenceRmsprop(reference, v2, Gradient(i, step), &this->elements_[i]);
        }
      }
      this->ExpectAgreement();
    }
  }
}

// The same numbers whether an array is updated at once or in pieces, as threads do.
TEST(DenseOptimizerPieces, GiveTheSameBits) {
  const AdamomSettings<float> settings = {0.1f, 0.99f, 0.9f, 1e-6f, 0.01f};
  constexpr std::size_t kLength = 101;
  std::vector<float> grad(kLength);
  for (std::size_t i = 0; i < kLength; ++i) grad[i] = static_cast<float>(Gradient(i, 0));
  std::vector<float> whole[4], pieces[4];
  for (auto& array : whole) array.assign(kLength, 0.25f);
  for (auto& array : pieces) array.assign(kLength, 0.25f);
  ApplyAdamom(settings, kLength, grad.data(), whole[0].data(), whole[1].data(), whole[2].data(),
              whole[3].data());
  for (std::size_t begin = 0; begin < kLength; begin += 13) {
    const std::size_t n = std::min<std::size_t>(13, kLength - begin);
    ApplyAdamom(settings, n, grad.data() + begin, pieces[0].data() + begin,
                pieces[1].data() + begin, pieces[2].data() + begin, pieces[3].data() + begin);
  }
  for (int k = 0; k < 4; ++k) EXPECT_EQ(whole[k], pieces[k]);
}

}  // namespace
}  // namespace monolith::core
