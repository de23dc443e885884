#include "core/dense/matmul.h"

#include <algorithm>
#include <cstring>

#include "core/system/simd.h"

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif
#if defined(__x86_64__) && defined(__GNUC__) && !defined(MONOLITH_SANITIZED)
#define MONOLITH_HAS_FMA_KERNEL 1
#include <immintrin.h>
#endif

namespace monolith::core {
namespace {

// A panel is kPanelColumns columns of b, row behind row, zero where b has no more columns. It is
// used in parts of limited depth, which stay in the first-level cache while rows of a go over them.
// With AVX2 the sums of kBlockRows rows with a panel fill 12 of 16 vector registers, the others
// hold the operands; with AVX-512 a row of a panel is one register.
constexpr std::size_t kPartDepth = 256;

// A part of a panel: what it adds to the product.
struct Part {
  const float* values;  // [depth, kPanelColumns]
  std::size_t depth;
  std::size_t columns;  // How many are not padding.
  bool is_first;        // Starts with the bias instead of what `out` holds.
  const float* bias;    // [columns], or nullptr.
  bool relu;            // Only for the last part.
};

MONOLITH_SIMD void MultiplyPartPortably(std::size_t rows, const MatrixView& a, const Part& part,
                                        float* MONOLITH_RESTRICT out, std::size_t out_stride) {
  for (std::size_t i = 0; i < rows; ++i) {
    float sums[kPanelColumns] = {};
    float* row = out + i * out_stride;
    for (std::size_t j = 0; j < part.columns; ++j) {
      sums[j] = part.is_first ? (part.bias != nullptr ? part.bias[j] : 0.f) : row[j];
    }
    for (std::size_t p = 0; p < part.depth; ++p) {
      const float value = a.data[i * a.row_stride + p * a.column_stride];
      const float* b = part.values + p * kPanelColumns;
      for (std::size_t j = 0; j < kPanelColumns; ++j) sums[j] += value * b[j];
    }
    for (std::size_t j = 0; j < part.columns; ++j) {
      row[j] = part.relu && sums[j] < 0.f ? 0.f : sums[j];
    }
  }
}

#ifdef MONOLITH_HAS_FMA_KERNEL

#define MONOLITH_FMA __attribute__((target("avx2,fma")))

// Every loop over rows is unrolled: sums that are not in registers halve the speed.
template <int kCount>
MONOLITH_FMA inline void MultiplyRows(const MatrixView& a, const Part& part, const float* bias,
                                      float* out, std::size_t out_stride) {
  __m256 sums[kCount][2];
#pragma GCC unroll 6
  for (int i = 0; i < kCount; ++i) {
    const float* start = part.is_first ? bias : out + i * out_stride;
    sums[i][0] = _mm256_loadu_ps(start);
    sums[i][1] = _mm256_loadu_ps(start + 8);
  }
  const float* values = a.data;
  const float* b = part.values;
  for (std::size_t p = 0; p < part.depth; ++p) {
    const __m256 left = _mm256_loadu_ps(b);
    const __m256 right = _mm256_loadu_ps(b + 8);
#pragma GCC unroll 6
    for (int i = 0; i < kCount; ++i) {
      const __m256 value = _mm256_broadcast_ss(values + i * a.row_stride);
      sums[i][0] = _mm256_fmadd_ps(value, left, sums[i][0]);
      sums[i][1] = _mm256_fmadd_ps(value, right, sums[i][1]);
    }
    values += a.column_stride;
    b += kPanelColumns;
  }
  // The maximum of two is its second argument if one of them is NaN.
  const __m256 floor = _mm256_set1_ps(part.relu ? 0.f : -__builtin_inff());
#pragma GCC unroll 6
  for (int i = 0; i < kCount; ++i) {
    _mm256_storeu_ps(out + i * out_stride, _mm256_max_ps(floor, sums[i][0]));
    _mm256_storeu_ps(out + i * out_stride + 8, _mm256_max_ps(floor, sums[i][1]));
  }
}

template <int kCount>
MONOLITH_FMA void MultiplyBlock(const MatrixView& a, const Part& part, float* out,
                                std::size_t out_stride) {
  alignas(32) float bias[kPanelColumns] = {};
  if (part.bias != nullptr) std::copy_n(part.bias, part.columns, bias);
  if (part.columns == kPanelColumns) {
    MultiplyRows<kCount>(a, part, bias, out, out_stride);
    return;
  }
  // A panel is wider than what is left of the output.
  float wide[kCount * kPanelColumns] = {};
  for (int i = 0; i < kCount; ++i) {
    std::copy_n(out + i * out_stride, part.columns, wide + i * kPanelColumns);
  }
  MultiplyRows<kCount>(a, part, bias, wide, kPanelColumns);
  for (int i = 0; i < kCount; ++i) {
    std::copy_n(wide + i * kPanelColumns, part.columns, out + i * out_stride);
  }
}

void MultiplyPartByFma(std::size_t rows, const MatrixView& a, const Part& part, float* out,
                       std::size_t out_stride) {
  std::size_t i = 0;
  for (; i + kBlockRows <= rows; i += kBlockRows) {
    MultiplyBlock<kBlockRows>(a.FromRow(i), part, out + i * out_stride, out_stride);
  }
  for (; i + 2 <= rows; i += 2) {
    MultiplyBlock<2>(a.FromRow(i), part, out + i * out_stride, out_stride);
  }
  if (i < rows) MultiplyBlock<1>(a.FromRow(i), part, out + i * out_stride, out_stride);
}

#define MONOLITH_AVX512 __attribute__((target("avx512f")))

// The same sums in the same order, so the same bits. Columns that are padding are masked, neither
// read nor written. Registers would do for more rows, but those of a matrix whose width is a
// multiple of 1024 share one set of the first-level cache, which has room for eight.
constexpr std::size_t kWideBlockRows = 8;

template <int kCount>
MONOLITH_AVX512 void MultiplyWideBlock(const MatrixView& a, const Part& part, float* out,
                                       std::size_t out_stride) {
  const auto columns = static_cast<__mmask16>((1u << part.columns) - 1);
  __m512 sums[kCount];
  const __m512 bias =
      part.bias != nullptr ? _mm512_maskz_loadu_ps(columns, part.bias) : _mm512_setzero_ps();
#pragma GCC unroll 8
  for (int i = 0; i < kCount; ++i) {
    sums[i] = part.is_first ? bias : _mm512_maskz_loadu_ps(columns, out + i * out_stride);
  }
  const float* values = a.data;
  const float* b = part.values;
  for (std::size_t p = 0; p < part.depth; ++p) {
    const __m512 row = _mm512_loadu_ps(b);
#pragma GCC unroll 8
    for (int i = 0; i < kCount; ++i) {
      sums[i] = _mm512_fmadd_ps(_mm512_set1_ps(values[i * a.row_stride]), row, sums[i]);
    }
    values += a.column_stride;
    b += kPanelColumns;
  }
  // The maximum of two is its second argument if one of them is NaN.
  const __m512 floor = _mm512_set1_ps(part.relu ? 0.f : -__builtin_inff());
#pragma GCC unroll 8
  for (int i = 0; i < kCount; ++i) {
    _mm512_mask_storeu_ps(out + i * out_stride, columns,
                          _mm512_maskz_max_ps(columns, floor, sums[i]));
  }
}

void MultiplyPartByAvx512(std::size_t rows, const MatrixView& a, const Part& part, float* out,
                          std::size_t out_stride) {
  std::size_t i = 0;
  for (; i + kWideBlockRows <= rows; i += kWideBlockRows) {
    MultiplyWideBlock<kWideBlockRows>(a.FromRow(i), part, out + i * out_stride, out_stride);
  }
  for (; i + 2 <= rows; i += 2) {
    MultiplyWideBlock<2>(a.FromRow(i), part, out + i * out_stride, out_stride);
  }
  if (i < rows) MultiplyWideBlock<1>(a.FromRow(i), part, out + i * out_stride, out_stride);
}

#endif  // MONOLITH_HAS_FMA_KERNEL

using PartMultiplier = void (*)(std::size_t rows, const MatrixView& a, const Part& part, float* out,
                                std::size_t out_stride);

PartMultiplier MultiplierOf([[maybe_unused]] MultiplyPath path) {
#ifdef MONOLITH_HAS_FMA_KERNEL
  if (path == MultiplyPath::kAvx512) return MultiplyPartByAvx512;
  if (path == MultiplyPath::kFma) return MultiplyPartByFma;
#endif
  return MultiplyPartPortably;
}

#if defined(__SSE2__)

// Writes four rows of a panel, from columns that are `stride` apart.
void TransposeFourRows(const float* columns, std::size_t stride, float* to) {
  for (std::size_t c = 0; c < kPanelColumns; c += 4) {
    const float* source = columns + c * stride;
    __m128 a = _mm_loadu_ps(source), b = _mm_loadu_ps(source + stride);
    __m128 d = _mm_loadu_ps(source + 2 * stride), e = _mm_loadu_ps(source + 3 * stride);
    _MM_TRANSPOSE4_PS(a, b, d, e);
    _mm_storeu_ps(to + c, a);
    _mm_storeu_ps(to + kPanelColumns + c, b);
    _mm_storeu_ps(to + 2 * kPanelColumns + c, d);
    _mm_storeu_ps(to + 3 * kPanelColumns + c, e);
  }
}

#endif

}  // namespace

void PackedMatrix::PackRows(const MatrixView& rows, std::size_t first, std::size_t count) {
  for (std::size_t j = 0; j < columns_; j += kPanelColumns) {
    const std::size_t width = std::min(kPanelColumns, columns_ - j);
    const float* source = rows.data + j * rows.column_stride;
    float* to = values_ + j * depth_ + first * kPanelColumns;
    if (width < kPanelColumns) std::fill_n(to, count * kPanelColumns, 0.f);
    if (rows.column_stride == 1 && width == kPanelColumns) {
      for (std::size_t p = 0; p < count; ++p) {
        std::memcpy(to + p * kPanelColumns, source + p * rows.row_stride,
                    kPanelColumns * sizeof(float));
      }
      continue;
    }
    std::size_t p = 0;
#if defined(__SSE2__)
    if (rows.row_stride == 1 && width == kPanelColumns) {
      for (; p + 4 <= count; p += 4)
        TransposeFourRows(source + p, rows.column_stride, to + p * kPanelColumns);
    }
#endif
    for (; p < count; ++p) {
      for (std::size_t c = 0; c < width; ++c) {
        to[p * kPanelColumns + c] = source[p * rows.row_stride + c * rows.column_stride];
      }
    }
  }
}

std::size_t PackedFloats(std::size_t depth, std::size_t columns) {
  return depth * ((columns + kPanelColumns - 1) / kPanelColumns * kPanelColumns);
}

bool IsSupported(MultiplyPath path) {
#ifdef MONOLITH_HAS_FMA_KERNEL
  if (path == MultiplyPath::kAvx512) return __builtin_cpu_supports("avx512f");
  if (path == MultiplyPath::kFma) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  }
#endif
  return path == MultiplyPath::kPortable;
}

MultiplyPath FastestPath() {
  static const MultiplyPath fastest = IsSupported(MultiplyPath::kAvx512) ? MultiplyPath::kAvx512
                                      : IsSupported(MultiplyPath::kFma)  ? MultiplyPath::kFma
                                                                         : MultiplyPath::kPortable;
  return fastest;
}

void Multiply(std::size_t rows, const MatrixView& a, const PackedMatrix& b,
              const Epilogue& epilogue, float* out, std::size_t out_stride, MultiplyPath path) {
  const PartMultiplier multiply = MultiplierOf(path);
  const std::size_t depth = b.depth(), columns = b.columns();
  // A depth of zero is one empty part: the bias alone.
  for (std::size_t p = 0; p == 0 || p < depth; p += kPartDepth) {
    const MatrixView a_part = {a.data + p * a.column_stride, a.row_stride, a.column_stride};
    for (std::size_t j = 0; j < columns; j += kPanelColumns) {
      Part part;
      part.values = b.panel(j) + p * kPanelColumns;
      part.depth = std::min(kPartDepth, depth - p);
      part.columns = std::min(kPanelColumns, columns - j);
      part.is_first = p == 0;
      part.bias = p == 0 && epilogue.bias != nullptr ? epilogue.bias + j : nullptr;
      part.relu = epilogue.relu && p + kPartDepth >= depth;
      multiply(rows, a_part, part, out + j, out_stride);
    }
  }
}

MONOLITH_SIMD void ReluGradient(std::size_t n, const float* outputs, const float* grad,
                                float* out) {
  for (std::size_t i = 0; i < n; ++i) out[i] = outputs[i] > 0.f ? grad[i] : 0.f;
}

MONOLITH_SIMD void SumRows(std::size_t rows, std::size_t columns, const float* matrix,
                           float* sums) {
  std::fill(sums, sums + columns, 0.f);
  for (std::size_t i = 0; i < rows; ++i) {
    for (std::size_t j = 0; j < columns; ++j) sums[j] += matrix[i * columns + j];
  }
}

}  // namespace monolith::core
