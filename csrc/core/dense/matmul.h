// Matrix products of the sizes that dense layers of ranking models have.
//
// Layers of some hundred units and batches of some hundred rows are too small for what general
// libraries do to be fast on large matrices; here packing the right side is all there is.
#pragma once

#include <cstddef>

namespace monolith::core {

// A matrix whose element (i, j) is data[i * row_stride + j * column_stride].
struct MatrixView {
  const float* data;
  std::size_t row_stride;
  std::size_t column_stride;

  [[nodiscard]] MatrixView FromRow(std::size_t row) const {
    return {data + row * row_stride, row_stride, column_stride};
  }
};

// A dense row-major matrix, and its transpose.
[[nodiscard]] inline MatrixView RowMajor(const float* data, std::size_t columns) {
  return {data, columns, 1};
}
[[nodiscard]] inline MatrixView Transposed(const float* data, std::size_t columns) {
  return {data, 1, columns};
}

// What is done to a product before it is stored.
struct Epilogue {
  const float* bias = nullptr;  // [columns], added to every row if given.
  bool relu = false;            // Negative elements become zero; NaN stays NaN.
};

// Products are computed this many columns at a time, or twice as many, and up to this many rows:
// pieces of a product for several threads are best multiples of both.
inline constexpr std::size_t kPanelColumns = 16;
inline constexpr std::size_t kBlockRows = 12;

// The right side of products [depth, columns], laid out so that reading it is fast; the floats of
// `storage`, of which `PackedFloats` says how many are needed, must outlive it.
class PackedMatrix {
 public:
  // Its values come with PackRows.
  PackedMatrix(std::size_t depth, std::size_t columns, float* storage)
      : depth_(depth), columns_(columns), values_(storage) {}

  // Sets the rows [first, first + count) to those of `rows` [count, columns]. Thread-safe for
  // different rows.
  void PackRows(const MatrixView& rows, std::size_t first, std::size_t count);

  [[nodiscard]] std::size_t depth() const { return depth_; }
  [[nodiscard]] std::size_t columns() const { return columns_; }
  [[nodiscard]] const float* panel(std::size_t first_column) const {
    return values_ + first_column * depth_;
  }
  // The columns [first, last) alone; `first` is a multiple of kPanelColumns.
  [[nodiscard]] PackedMatrix Columns(std::size_t first, std::size_t last) const {
    return PackedMatrix(depth_, last - first, values_ + first * depth_);
  }

 private:
  std::size_t depth_;
  std::size_t columns_;
  float* values_;
};

[[nodiscard]] std::size_t PackedFloats(std::size_t depth, std::size_t columns);

// What products are computed with. The last two give the same bits, the first rounds every product
// before it is added.
enum class MultiplyPath { kPortable, kFma, kAvx512 };

// Whether this machine, and this build, have it; and the fastest that they have.
[[nodiscard]] bool IsSupported(MultiplyPath path);
[[nodiscard]] MultiplyPath FastestPath();

// out = a x b, for a [rows, b.depth()] and rows of `out` of b.columns() floats, `out_stride` apart,
// which must not overlap with it. Thread-safe for disjoint outputs: split rows or columns between
// threads, no sum depends on how. Uses fused multiply-add where the machine has it, so the last
// bits depend on the machine. Another path than the fastest is for tests; it must be supported.
void Multiply(std::size_t rows, const MatrixView& a, const PackedMatrix& b,
              const Epilogue& epilogue, float* out, std::size_t out_stride,
              MultiplyPath path = FastestPath());

// The gradient of a product with ReLU, from that of its outputs: zero where the output is not
// positive. All are `n` elements.
void ReluGradient(std::size_t n, const float* outputs, const float* grad, float* out);

// sums[j] = sum over i of matrix[i, j], for a row-major [rows, columns].
void SumRows(std::size_t rows, std::size_t columns, const float* matrix, float* sums);

}  // namespace monolith::core
