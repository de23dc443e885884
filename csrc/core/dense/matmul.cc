#include "core/dense/matmul.h"

#include <algorithm>
#include <cstring>
#include <vector>

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

// A panel is kPanelColumns columns of b, row behind row, zero where b has no more columns. Products
// go through depth in parts, so that two panels of a part and the rows of a that meet them stay in
// the first-level cache.
constexpr std::size_t kPartDepth = 128;

// Rows of a that go over all panels of a part before others do: what they read of a is copied into
// the second-level cache where its own place is a bad one to read from.
constexpr std::size_t kChunkRows = 96;

// Some rows of a times a part of one or two panels.
struct Block {
  const float* a;  // Element (i, p) is a[i * row_step + p * depth_step].
  std::size_t row_step;
  std::size_t depth_step;
  const float* panel;        // [depth, kPanelColumns],
  std::size_t panel_floats;  // and the second one is so many floats behind it.
  std::size_t depth;
  std::size_t columns;  // How many are not padding.
  bool is_first;        // Starts with the bias instead of what `out` holds.
  const float* bias;    // [columns], or nullptr.
  bool relu;            // Only in the last part.
  float* out;
  std::size_t out_stride;
};

// One row. Every machine that matters has another way.
MONOLITH_SIMD void MultiplyPortably(const Block& block) {
  float sums[kPanelColumns] = {};
  for (std::size_t j = 0; j < block.columns; ++j) {
    sums[j] = block.is_first ? (block.bias != nullptr ? block.bias[j] : 0.f) : block.out[j];
  }
  for (std::size_t p = 0; p < block.depth; ++p) {
    const float value = block.a[p * block.depth_step];
    const float* b = block.panel + p * kPanelColumns;
    for (std::size_t j = 0; j < kPanelColumns; ++j) sums[j] += value * b[j];
  }
  for (std::size_t j = 0; j < block.columns; ++j) {
    block.out[j] = block.relu && sums[j] < 0.f ? 0.f : sums[j];
  }
}

#ifdef MONOLITH_HAS_FMA_KERNEL

#define MONOLITH_FMA __attribute__((target("avx2,fma")))

// With one panel. Every loop over rows is unrolled: sums that are not in registers halve the speed.
// Those of six rows fill 12 of 16 registers, the others hold the operands.
template <int kCount>
MONOLITH_FMA void MultiplyByFma(const Block& block) {
  // A panel may be wider than what is left of the output.
  const bool is_whole = block.columns == kPanelColumns;
  alignas(32) float wide[kCount * kPanelColumns] = {}, bias[kPanelColumns] = {};
  if (block.bias != nullptr) std::copy_n(block.bias, block.columns, bias);
  if (!is_whole && !block.is_first) {
    for (int i = 0; i < kCount; ++i) {
      std::copy_n(block.out + i * block.out_stride, block.columns, wide + i * kPanelColumns);
    }
  }
  float* const out = is_whole ? block.out : wide;
  const std::size_t out_stride = is_whole ? block.out_stride : kPanelColumns;
  __m256 sums[kCount][2];
#pragma GCC unroll 6
  for (int i = 0; i < kCount; ++i) {
    const float* start = block.is_first ? bias : out + i * out_stride;
    sums[i][0] = _mm256_loadu_ps(start);
    sums[i][1] = _mm256_loadu_ps(start + 8);
  }
  const float* a = block.a;
  const float* b = block.panel;
  for (std::size_t p = 0; p < block.depth; ++p) {
    const __m256 left = _mm256_loadu_ps(b);
    const __m256 right = _mm256_loadu_ps(b + 8);
#pragma GCC unroll 6
    for (int i = 0; i < kCount; ++i) {
      const __m256 value = _mm256_broadcast_ss(a + i * block.row_step);
      sums[i][0] = _mm256_fmadd_ps(value, left, sums[i][0]);
      sums[i][1] = _mm256_fmadd_ps(value, right, sums[i][1]);
    }
    a += block.depth_step;
    b += kPanelColumns;
  }
  // The maximum of two is its second argument if one of them is NaN.
  const __m256 floor = _mm256_set1_ps(block.relu ? 0.f : -__builtin_inff());
#pragma GCC unroll 6
  for (int i = 0; i < kCount; ++i) {
    _mm256_storeu_ps(out + i * out_stride, _mm256_max_ps(floor, sums[i][0]));
    _mm256_storeu_ps(out + i * out_stride + 8, _mm256_max_ps(floor, sums[i][1]));
  }
  if (is_whole) return;
  for (int i = 0; i < kCount; ++i) {
    std::copy_n(wide + i * kPanelColumns, block.columns, block.out + i * block.out_stride);
  }
}

#define MONOLITH_AVX512 __attribute__((target("avx512f")))

// The same sums in the same order, so the same bits. Those of twelve rows with two panels fill 24
// of 32 registers. Columns that are padding are masked, neither read nor written.
template <int kCount, int kPanels>
MONOLITH_AVX512 void MultiplyByAvx512(const Block& block) {
  __mmask16 columns[kPanels];
  __m512 sums[kCount][kPanels];
#pragma GCC unroll 2
  for (int k = 0; k < kPanels; ++k) {
    const std::size_t left = block.columns - k * kPanelColumns;
    columns[k] = static_cast<__mmask16>((1u << std::min(left, kPanelColumns)) - 1);
    const __m512 bias = block.bias != nullptr
                            ? _mm512_maskz_loadu_ps(columns[k], block.bias + k * kPanelColumns)
                            : _mm512_setzero_ps();
#pragma GCC unroll 12
    for (int i = 0; i < kCount; ++i) {
      const float* start = block.out + i * block.out_stride + k * kPanelColumns;
      sums[i][k] = block.is_first ? bias : _mm512_maskz_loadu_ps(columns[k], start);
    }
  }
  // Three rows are reached from one pointer: with one for each, some would lie in memory.
  constexpr int kPointers = (kCount + 2) / 3;
  const std::size_t row_step = block.row_step;
  const float* rows[kPointers];
#pragma GCC unroll 4
  for (int g = 0; g < kPointers; ++g) rows[g] = block.a + 3 * g * row_step;
  const float* panel = block.panel;
  for (std::size_t p = 0; p < block.depth; ++p) {
    __m512 right[kPanels];
#pragma GCC unroll 2
    for (int k = 0; k < kPanels; ++k) right[k] = _mm512_loadu_ps(panel + k * block.panel_floats);
    panel += kPanelColumns;
#pragma GCC unroll 12
    for (int i = 0; i < kCount; ++i) {
      const __m512 value = _mm512_set1_ps(rows[i / 3][(i % 3) * row_step]);
#pragma GCC unroll 2
      for (int k = 0; k < kPanels; ++k) sums[i][k] = _mm512_fmadd_ps(value, right[k], sums[i][k]);
    }
#pragma GCC unroll 4
    for (int g = 0; g < kPointers; ++g) rows[g] += block.depth_step;
  }
  const __m512 floor = _mm512_set1_ps(block.relu ? 0.f : -__builtin_inff());
#pragma GCC unroll 2
  for (int k = 0; k < kPanels; ++k) {
#pragma GCC unroll 12
    for (int i = 0; i < kCount; ++i) {
      _mm512_mask_storeu_ps(block.out + i * block.out_stride + k * kPanelColumns, columns[k],
                            _mm512_maskz_max_ps(columns[k], floor, sums[i][k]));
    }
  }
}

#endif  // MONOLITH_HAS_FMA_KERNEL

// How so many rows are multiplied with one panel, and with two if there is a way.
struct Kernel {
  std::size_t rows;
  void (*with_one)(const Block&);
  void (*with_two)(const Block&);
};

constexpr Kernel kPortableKernels[] = {{1, MultiplyPortably, nullptr}};
#ifdef MONOLITH_HAS_FMA_KERNEL
constexpr Kernel kFmaKernels[] = {{6, MultiplyByFma<6>, nullptr},
                                  {4, MultiplyByFma<4>, nullptr},
                                  {2, MultiplyByFma<2>, nullptr},
                                  {1, MultiplyByFma<1>, nullptr}};
constexpr Kernel kAvx512Kernels[] = {{12, MultiplyByAvx512<12, 1>, MultiplyByAvx512<12, 2>},
                                     {8, MultiplyByAvx512<8, 1>, MultiplyByAvx512<8, 2>},
                                     {4, MultiplyByAvx512<4, 1>, MultiplyByAvx512<4, 2>},
                                     {2, MultiplyByAvx512<2, 1>, MultiplyByAvx512<2, 2>},
                                     {1, MultiplyByAvx512<1, 1>, MultiplyByAvx512<1, 2>}};
#endif

// From that for most rows to that for one.
const Kernel* KernelsOf([[maybe_unused]] MultiplyPath path) {
#ifdef MONOLITH_HAS_FMA_KERNEL
  if (path == MultiplyPath::kAvx512) return kAvx512Kernels;
  if (path == MultiplyPath::kFma) return kFmaKernels;
#endif
  return kPortableKernels;
}

// Not inline, see BatchOfThisThread.
__attribute__((noinline)) float* CopyOfThisThread() {
  thread_local std::vector<float> floats(kChunkRows * kPartDepth);
  return floats.data();
}

// Whether rows of a are read faster from a copy: elements of a row that are apart touch a cache
// line each, and rows that are multiples of 2 KiB apart share few sets of the first-level cache.
bool IsWorthCopying(const MatrixView& a) {
  constexpr std::size_t kBadStride = 512;
  return a.column_stride != 1 || (a.row_stride != 0 && a.row_stride % kBadStride == 0);
}

#if defined(__SSE2__)

// Turns four rows of four elements into columns.
void TransposeFour(const float* from, std::size_t from_stride, float* to, std::size_t to_stride) {
  __m128 a = _mm_loadu_ps(from), b = _mm_loadu_ps(from + from_stride);
  __m128 c = _mm_loadu_ps(from + 2 * from_stride), d = _mm_loadu_ps(from + 3 * from_stride);
  _MM_TRANSPOSE4_PS(a, b, c, d);
  _mm_storeu_ps(to, a);
  _mm_storeu_ps(to + to_stride, b);
  _mm_storeu_ps(to + 2 * to_stride, c);
  _mm_storeu_ps(to + 3 * to_stride, d);
}

#endif

// Copies rows so that the elements of a column lie together: [depth, rows].
void CopyRows(const MatrixView& a, std::size_t rows, std::size_t depth, float* to) {
  if (a.row_stride == 1) {
    for (std::size_t p = 0; p < depth; ++p) {
      std::memcpy(to + p * rows, a.data + p * a.column_stride, rows * sizeof(float));
    }
    return;
  }
  std::size_t p = 0;
#if defined(__SSE2__)
  if (a.column_stride == 1 && rows % 4 == 0) {
    for (; p + 4 <= depth; p += 4) {
      for (std::size_t i = 0; i < rows; i += 4) {
        TransposeFour(a.data + i * a.row_stride + p, a.row_stride, to + p * rows + i, rows);
      }
    }
  }
#endif
  for (; p < depth; ++p) {
    for (std::size_t i = 0; i < rows; ++i) {
      to[p * rows + i] = a.data[i * a.row_stride + p * a.column_stride];
    }
  }
}

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
      for (; p + 4 <= count; p += 4) {
        for (std::size_t c = 0; c < kPanelColumns; c += 4) {
          TransposeFour(source + p + c * rows.column_stride, rows.column_stride,
                        to + p * kPanelColumns + c, kPanelColumns);
        }
      }
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
  const Kernel* const kernels = KernelsOf(path);
  const std::size_t depth = b.depth(), columns = b.columns();
  const bool copied = IsWorthCopying(a);
  float* const copy = copied ? CopyOfThisThread() : nullptr;
  Block block;
  block.out_stride = out_stride;
  block.panel_floats = depth * kPanelColumns;
  // A depth of zero is one empty part: the bias alone.
  for (std::size_t p = 0; p == 0 || p < depth; p += kPartDepth) {
    block.depth = std::min(kPartDepth, depth - p);
    block.is_first = p == 0;
    block.relu = epilogue.relu && p + kPartDepth >= depth;
    for (std::size_t chunk = 0; chunk < rows; chunk += kChunkRows) {
      const std::size_t end = std::min(chunk + kChunkRows, rows);
      // In the first round over the panels, rows are copied just before they are used.
      for (std::size_t j = 0; j < columns;) {
        const bool two = kernels->with_two != nullptr && columns - j > kPanelColumns;
        block.columns = std::min(columns - j, (two ? 2 : 1) * kPanelColumns);
        block.panel = b.panel(j) + p * kPanelColumns;
        block.bias = p == 0 && epilogue.bias != nullptr ? epilogue.bias + j : nullptr;
        const Kernel* kernel = kernels;
        for (std::size_t i = chunk; i < end; i += kernel->rows) {
          while (kernel->rows > end - i) ++kernel;
          const MatrixView from = {a.data + i * a.row_stride + p * a.column_stride, a.row_stride,
                                   a.column_stride};
          if (copied) {
            float* const to = copy + (i - chunk) * block.depth;
            if (j == 0) CopyRows(from, kernel->rows, block.depth, to);
            block.a = to;
            block.row_step = 1;
            block.depth_step = kernel->rows;
          } else {
            block.a = from.data;
            block.row_step = from.row_stride;
            block.depth_step = from.column_stride;
          }
          block.out = out + i * out_stride + j;
          (two ? kernel->with_two : kernel->with_one)(block);
        }
        j += block.columns;
      }
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
