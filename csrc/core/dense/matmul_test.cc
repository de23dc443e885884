#include "core/dense/matmul.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

namespace monolith::core {
namespace {

// Small integers: every sum is exact, in any order.
std::vector<float> MakeMatrix(std::size_t n, int seed) {
  std::vector<float> values(n);
  for (std::size_t i = 0; i < n; ++i) values[i] = static_cast<float>((i * 7 + seed * 5) % 11) - 5;
  return values;
}

float At(const MatrixView& m, std::size_t i, std::size_t j) {
  return m.data[i * m.row_stride + j * m.column_stride];
}

std::vector<float> Expected(std::size_t rows, std::size_t columns, std::size_t depth,
                            const MatrixView& a, const MatrixView& b, const Epilogue& epilogue) {
  std::vector<float> out(rows * columns);
  for (std::size_t i = 0; i < rows; ++i) {
    for (std::size_t j = 0; j < columns; ++j) {
      float sum = epilogue.bias != nullptr ? epilogue.bias[j] : 0.f;
      for (std::size_t p = 0; p < depth; ++p) sum += At(a, i, p) * At(b, p, j);
      out[i * columns + j] = epilogue.relu && sum < 0 ? 0.f : sum;
    }
  }
  return out;
}

struct Shape {
  std::size_t rows, columns, depth;
};

class MultiplyTest : public testing::TestWithParam<Shape> {};

// Around the sizes of a block of rows (6), a panel's columns (16) and a part's depth (256).
INSTANTIATE_TEST_SUITE_P(Shapes, MultiplyTest,
                         testing::Values(Shape{1, 1, 1}, Shape{6, 16, 8}, Shape{5, 15, 3},
                                         Shape{7, 17, 5}, Shape{13, 33, 64}, Shape{3, 1, 256},
                                         Shape{8, 20, 257}, Shape{20, 5, 1000}, Shape{2, 3, 0},
                                         Shape{0, 4, 4}, Shape{4, 0, 4}));

TEST_P(MultiplyTest, EqualsTheDefinition) {
  const auto [rows, columns, depth] = GetParam();
  const std::vector<float> a = MakeMatrix(rows * depth, 1), b = MakeMatrix(depth * columns, 2);
  const std::vector<float> bias = MakeMatrix(columns, 3);
  const MatrixView as[] = {RowMajor(a.data(), depth), Transposed(a.data(), rows)};
  const MatrixView bs[] = {RowMajor(b.data(), columns), Transposed(b.data(), depth)};
  const Epilogue epilogues[] = {{}, {bias.data(), false}, {nullptr, true}, {bias.data(), true}};
  for (const MatrixView& left : as) {
    for (const MatrixView& right : bs) {
      for (const Epilogue& epilogue : epilogues) {
        // One element more, to see that nothing is written behind the end.
        std::vector<float> out(rows * columns + 1, 99.f);
        std::vector<float> storage(PackedFloats(depth, columns));
        PackedMatrix packed(depth, columns, storage.data());
        packed.PackRows(right, 0, depth / 2);
        packed.PackRows(right.FromRow(depth / 2), depth / 2, depth - depth / 2);
        Multiply(rows, left, packed, epilogue, out.data(), columns);
        EXPECT_EQ(out.back(), 99.f);
        out.pop_back();
        EXPECT_EQ(out, Expected(rows, columns, depth, left, right, epilogue));
      }
    }
  }
}

TEST(MultiplyColumnsTest, GivesThePartsOfTheWhole) {
  const std::size_t rows = 7, columns = 40, depth = 9;
  const std::vector<float> a = MakeMatrix(rows * depth, 1), b = MakeMatrix(depth * columns, 2);
  std::vector<float> out(rows * columns), storage(PackedFloats(depth, columns));
  PackedMatrix packed(depth, columns, storage.data());
  const MatrixView left = RowMajor(a.data(), depth), right = RowMajor(b.data(), columns);
  packed.PackRows(right, 0, depth);
  Multiply(rows, left, packed.Columns(0, 16), {}, out.data(), columns);
  Multiply(rows, left, packed.Columns(16, columns), {}, out.data() + 16, columns);
  EXPECT_EQ(out, Expected(rows, columns, depth, left, right, {}));
}

TEST(MultiplyNanTest, KeepsNan) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> a = {nan, 1, 1}, b = {1};
  std::vector<float> out(3), storage(PackedFloats(1, 1));
  PackedMatrix packed(1, 1, storage.data());
  packed.PackRows(RowMajor(b.data(), 1), 0, 1);
  Multiply(3, RowMajor(a.data(), 1), packed, {nullptr, true}, out.data(), 1);
  EXPECT_TRUE(std::isnan(out[0]));
  EXPECT_EQ(out[1], 1);
}

TEST(ReluGradientTest, PassesOnlyWhereTheOutputIsPositive) {
  const std::vector<float> outputs = {0, 2, 0.5f, 0}, grad = {1, 2, -3, 4};
  std::vector<float> out(4);
  ReluGradient(4, outputs.data(), grad.data(), out.data());
  EXPECT_EQ(out, (std::vector<float>{0, 2, -3, 0}));
}

TEST(SumRowsTest, SumsEachColumn) {
  const std::vector<float> matrix = {1, 2, 3, 4, 5, 6};
  std::vector<float> sums(2, 99.f);
  SumRows(3, 2, matrix.data(), sums.data());
  EXPECT_EQ(sums, (std::vector<float>{9, 12}));
}

}  // namespace
}  // namespace monolith::core
