#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "core/dense/matmul.h"

namespace monolith::core {
namespace {

// The three products of a dense layer: its outputs, and the gradients by its inputs and kernel.
void BM_DenseLayer(benchmark::State& state) {
  const std::size_t batch = 512;
  const auto path = static_cast<MultiplyPath>(state.range(2));
  if (!IsSupported(path)) {
    state.SkipWithError("this machine does not have it");
    return;
  }
  const auto dim = static_cast<std::size_t>(state.range(0));
  const auto units = static_cast<std::size_t>(state.range(1));
  std::vector<float> inputs(batch * dim, 0.1f), kernel(dim * units, 0.2f), bias(units);
  std::vector<float> outputs(batch * units), input_grads(batch * dim), kernel_grads(dim * units);
  std::vector<float> storage(
      std::max({PackedFloats(batch, units), PackedFloats(units, dim), PackedFloats(dim, units)}));
  for (auto _ : state) {
    PackedMatrix by_kernel(dim, units, storage.data());
    by_kernel.PackRows(RowMajor(kernel.data(), units), 0, dim);
    Multiply(batch, RowMajor(inputs.data(), dim), by_kernel, {bias.data(), true}, outputs.data(),
             units, path);
    PackedMatrix back(units, dim, storage.data());
    back.PackRows(Transposed(kernel.data(), units), 0, units);
    Multiply(batch, RowMajor(outputs.data(), units), back, {}, input_grads.data(), dim, path);
    PackedMatrix grads(batch, units, storage.data());
    grads.PackRows(RowMajor(outputs.data(), units), 0, batch);
    Multiply(dim, Transposed(inputs.data(), dim), grads, {}, kernel_grads.data(), units, path);
  }
  state.counters["GFLOP/s"] = benchmark::Counter(6e-9 * static_cast<double>(batch * dim * units),
                                                 benchmark::Counter::kIsIterationInvariantRate);
}
// The paths are 0: portable, 1: AVX2 and FMA, 2: AVX-512.
BENCHMARK(BM_DenseLayer)->ArgNames({"dim", "units", "path"})->Apply([](auto* benchmark) {
  for (auto [dim, units] : {std::pair{64, 256}, {256, 64}, {429, 256}, {64, 1}, {1024, 1024}}) {
    for (int path = 0; path < 3; ++path) benchmark->Args({dim, units, path});
  }
});

}  // namespace
}  // namespace monolith::core
