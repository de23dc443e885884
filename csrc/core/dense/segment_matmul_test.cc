#include "core/dense/segment_matmul.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <vector>

namespace monolith::core {
namespace {

// Small integers: every sum is exact in float and double, in any order.
template <typename T>
std::vector<T> MakeMatrix(std::size_t n, int seed) {
  std::vector<T> values(n);
  for (std::size_t i = 0; i < n; ++i) values[i] = static_cast<T>((i * 7 + seed * 5) % 11) - 5;
  return values;
}

Segments MakeSegments(std::vector<std::size_t> sizes, std::size_t units) {
  Segments segments;
  segments.starts.push_back(0);
  for (const std::size_t size : sizes) segments.starts.push_back(segments.starts.back() + size);
  segments.units = units;
  return segments;
}

template <typename T>
class SegmentMatmulTest : public testing::Test {};

using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(SegmentMatmulTest, Types);

TYPED_TEST(SegmentMatmulTest, ForwardAndGradientsAgreeWithTheirDefinitions) {
  using T = TypeParam;
  constexpr std::size_t kRows = 5;
  for (const std::size_t units : {1, 2, 7, 8, 9, 33}) {
    const Segments s = MakeSegments({3, 1, 4}, units);
    const auto input = MakeMatrix<T>(kRows * s.dim(), 1);
    const auto weight = MakeMatrix<T>(s.dim() * units, 2);
    const auto grad = MakeMatrix<T>(kRows * s.width(), 3);
    std::vector<T> out(kRows * s.width()), expected_out(out.size());
    std::vector<T> d_input(input.size()), expected_d_input(input.size());
    std::vector<T> d_weight(weight.size()), expected_d_weight(weight.size());
    for (std::size_t r = 0; r < kRows; ++r) {
      for (std::size_t j = 0; j < s.size(); ++j) {
        for (std::size_t i = s.starts[j]; i < s.starts[j + 1]; ++i) {
          for (std::size_t k = 0; k < units; ++k) {
            const std::size_t at = r * s.width() + j * units + k;
            expected_out[at] += input[r * s.dim() + i] * weight[i * units + k];
            expected_d_input[r * s.dim() + i] += grad[at] * weight[i * units + k];
            expected_d_weight[i * units + k] += grad[at] * input[r * s.dim() + i];
          }
        }
      }
    }
    SegmentMatmul(s, kRows, input.data(), weight.data(), out.data());
    EXPECT_EQ(out, expected_out);
    SegmentMatmulInputGradient(s, kRows, grad.data(), weight.data(), d_input.data());
    EXPECT_EQ(d_input, expected_d_input);
    for (std::size_t j = 0; j < s.size(); ++j) {
      SegmentMatmulWeightGradient(s, j, kRows, grad.data(), input.data(),
                                  d_weight.data() + s.starts[j] * units);
    }
    EXPECT_EQ(d_weight, expected_d_weight);
  }
}

TYPED_TEST(SegmentMatmulTest, NoRowsWriteNothingButZeroWeightGradients) {
  using T = TypeParam;
  const Segments s = MakeSegments({2}, 2);
  std::vector<T> d_weight(4, T(9));
  const std::vector<T> nothing(1);
  SegmentMatmul(s, 0, nothing.data(), nothing.data(), static_cast<T*>(nullptr));
  SegmentMatmulWeightGradient(s, 0, 0, nothing.data(), nothing.data(), d_weight.data());
  EXPECT_EQ(d_weight, std::vector<T>(4, T(0)));
}

}  // namespace
}  // namespace monolith::core
