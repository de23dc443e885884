#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstddef>
#include <vector>

#include "core/dense/matmul.h"

namespace monolith::core {
namespace {

// The three products of a dense layer: its outputs, and the gradients by its inputs and kernel.
void BM_DenseLayer(benchmark::State& state) {
  const std::size_t batch = 512;
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
             units);
    PackedMatrix back(units, dim, storage.data());
    back.PackRows(Transposed(kernel.data(), units), 0, units);
    Multiply(batch, RowMajor(outputs.data(), units), back, {}, input_grads.data(), dim);
    PackedMatrix grads(batch, units, storage.data());
    grads.PackRows(RowMajor(outputs.data(), units), 0, batch);
    Multiply(dim, Transposed(inputs.data(), dim), grads, {}, kernel_grads.data(), units);
  }
  state.counters["GFLOP/s"] = benchmark::Counter(6e-9 * static_cast<double>(batch * dim * units),
                                                 benchmark::Counter::kIsIterationInvariantRate);
}
BENCHMARK(BM_DenseLayer)
    ->ArgNames({"dim", "units"})
    ->Args({64, 256})
    ->Args({256, 64})
    ->Args({64, 1})
    ->Args({1024, 1024});

}  // namespace
}  // namespace monolith::core
