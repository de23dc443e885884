#include "core/dense/matmul.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <limits>
#include <random>
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

// All that this machine has; the others are not tested here.
std::vector<MultiplyPath> SupportedPaths() {
  std::vector<MultiplyPath> paths;
  for (auto path : {MultiplyPath::kPortable, MultiplyPath::kFma, MultiplyPath::kAvx512}) {
    if (IsSupported(path)) paths.push_back(path);
  }
  return paths;
}

struct Shape {
  std::size_t rows, columns, depth;
};

class MultiplyTest : public testing::TestWithParam<Shape> {};

// Around the sizes of a block of rows (12 or 6, then 8, 4, 2 and 1), a chunk of blocks (96), one
// and two panels' columns (16), a part's depth (128), and rows whose place is bad (512).
INSTANTIATE_TEST_SUITE_P(Shapes, MultiplyTest,
                         testing::Values(Shape{1, 1, 1}, Shape{6, 16, 8}, Shape{5, 15, 3},
                                         Shape{7, 17, 5}, Shape{13, 33, 64}, Shape{3, 1, 256},
                                         Shape{8, 20, 257}, Shape{20, 5, 1000}, Shape{2, 3, 0},
                                         Shape{12, 16, 4}, Shape{24, 48, 300}, Shape{31, 31, 31},
                                         Shape{97, 33, 129}, Shape{108, 64, 512},
                                         Shape{23, 49, 1024}, Shape{0, 4, 4}, Shape{4, 0, 4}));

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
        std::vector<float> storage(PackedFloats(depth, columns));
        PackedMatrix packed(depth, columns, storage.data());
        packed.PackRows(right, 0, depth / 2);
        packed.PackRows(right.FromRow(depth / 2), depth / 2, depth - depth / 2);
        for (MultiplyPath path : SupportedPaths()) {
          SCOPED_TRACE(static_cast<int>(path));
          // One element more, to see that nothing is written behind the end.
          std::vector<float> out(rows * columns + 1, 99.f);
          Multiply(rows, left, packed, epilogue, out.data(), columns, path);
          EXPECT_EQ(out.back(), 99.f);
          out.pop_back();
          EXPECT_EQ(out, Expected(rows, columns, depth, left, right, epilogue));
        }
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

// Sums that are rounded: how often depends on the path, and only the portable one rounds products.
TEST(MultiplyPathTest, FusedPathsGiveTheSameBitsAndThePortableNearlyTheSame) {
  const std::size_t rows = 31, columns = 45, depth = 700;
  std::vector<float> a(rows * depth), b(depth * columns), bias(columns);
  std::mt19937 random(1);
  std::uniform_real_distribution<float> uniform(-1.f, 1.f);
  for (auto* values : {&a, &b, &bias}) {
    for (float& value : *values) value = uniform(random);
  }
  std::vector<float> storage(PackedFloats(depth, columns));
  PackedMatrix packed(depth, columns, storage.data());
  packed.PackRows(RowMajor(b.data(), columns), 0, depth);
  const auto product = [&](MultiplyPath path) {
    std::vector<float> out(rows * columns);
    Multiply(rows, RowMajor(a.data(), depth), packed, {bias.data(), true}, out.data(), columns,
             path);
    return out;
  };
  const std::vector<float> portable = product(MultiplyPath::kPortable);
  for (MultiplyPath path : SupportedPaths()) {
    const std::vector<float> fused = product(path);
    for (std::size_t i = 0; i < fused.size(); ++i) EXPECT_NEAR(fused[i], portable[i], 1e-3f);
  }
  if (!IsSupported(MultiplyPath::kAvx512) || !IsSupported(MultiplyPath::kFma)) {
    GTEST_SKIP() << "This machine or build has no AVX-512 whose bits could be compared.";
  }
  EXPECT_EQ(product(MultiplyPath::kAvx512), product(MultiplyPath::kFma));
}

TEST(MultiplyPathTest, TheFastestIsSupported) {
  EXPECT_TRUE(IsSupported(FastestPath()));
  EXPECT_EQ(FastestPath(), SupportedPaths().back());
}

// In every place of a block, with and without ReLU, in a panel that is full and in one that is not.
TEST(MultiplyNanTest, KeepsNan) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::size_t rows = 13, columns = 17;
  const std::vector<float> b(columns, 1.f);
  std::vector<float> storage(PackedFloats(1, columns));
  PackedMatrix packed(1, columns, storage.data());
  packed.PackRows(RowMajor(b.data(), columns), 0, 1);
  for (MultiplyPath path : SupportedPaths()) {
    for (std::size_t row = 0; row < rows; ++row) {
      for (bool relu : {false, true}) {
        std::vector<float> a(rows, -1.f), out(rows * columns);
        a[row] = nan;
        Multiply(rows, RowMajor(a.data(), 1), packed, {nullptr, relu}, out.data(), columns, path);
        for (std::size_t i = 0; i < rows * columns; ++i) {
          if (i / columns == row) {
            EXPECT_TRUE(std::isnan(out[i]));
          } else {
            EXPECT_EQ(out[i], relu ? 0.f : -1.f);
          }
        }
      }
    }
  }
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
