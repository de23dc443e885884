#include <benchmark/benchmark.h>

#include <cstddef>
#include <vector>

#include "core/dense/dense_optimizer.h"
#include "core/dense/global_norm.h"

namespace monolith::core {
namespace {

struct Arrays {
  explicit Arrays(std::size_t n) : grad(n, 0.1f), var(n, 0.2f), m(n), v(n), c(n) {}
  std::vector<float> grad, var, m, v, c;
};

void BM_Adamom(benchmark::State& state) {
  const auto n = static_cast<std::size_t>(state.range(0));
  Arrays a(n);
  const AdamomSettings<float> settings = {1e-3f, 0.9999f, 0.99f, 1e-6f, 1e-4f};
  for (auto _ : state) {
    ApplyAdamom(settings, n, a.grad.data(), a.var.data(), a.m.data(), a.v.data(), a.c.data());
  }
  state.SetItemsProcessed(state.iterations() * state.range(0));
}
BENCHMARK(BM_Adamom)->ArgName("elements")->Arg(1 << 10)->Arg(100'000);

void BM_Rmsprop(benchmark::State& state) {
  const auto n = static_cast<std::size_t>(state.range(0));
  Arrays a(n);
  const RmspropSettings<float> settings = {1e-3f, 0.99f, 0.999f, 1e-8f, 1e-4f};
  for (auto _ : state) {
    ApplyRmsprop(settings, n, a.grad.data(), a.var.data(), a.m.data(), a.v.data());
  }
  state.SetItemsProcessed(state.iterations() * state.range(0));
}
BENCHMARK(BM_Rmsprop)->ArgName("elements")->Arg(1 << 10)->Arg(100'000);

void BM_SumOfSquares(benchmark::State& state) {
  const auto n = static_cast<std::size_t>(state.range(0));
  const std::vector<float> values(n, 0.1f);
  for (auto _ : state) benchmark::DoNotOptimize(SumOfSquares(values.data(), n));
  state.SetItemsProcessed(state.iterations() * state.range(0));
}
BENCHMARK(BM_SumOfSquares)->ArgName("elements")->Arg(1 << 10)->Arg(100'000);

}  // namespace
}  // namespace monolith::core
