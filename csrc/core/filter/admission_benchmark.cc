// What it costs to count an id and to remember a key, alone and with other threads.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <random>
#include <vector>

#include "core/filter/sliding_hash_filter.h"
#include "core/table/touched_key_set.h"

namespace monolith::core {
namespace {

constexpr std::size_t kBatch = 4096;

std::vector<std::int64_t> RandomIds(std::size_t n, unsigned seed) {
  std::mt19937_64 random(seed);
  std::vector<std::int64_t> ids(n);
  for (auto& id : ids) id = static_cast<std::int64_t>(random());
  return ids;
}

// The default filter of a server, with `ids` different ids coming round again and again.
void BM_SlidingFilterAdmit(benchmark::State& state) {
  static SlidingHashFilter* const filter = [] {
    SlotOccurrenceThresholdConfig config;
    config.default_occurrence_threshold = 10;
    return new SlidingHashFilter(300'000'000, 7, SlotThresholds(config));
  }();
  const auto ids = RandomIds(state.range(0), 1);
  std::size_t next = static_cast<std::size_t>(state.thread_index()) * 12'345 % ids.size();
  for (auto _ : state) {
    benchmark::DoNotOptimize(filter->Admit(ids[next], 1));
    next = next + 1 < ids.size() ? next + 1 : 0;
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(BM_SlidingFilterAdmit)
    ->ArgName("ids")
    ->Arg(1 << 12)
    ->Arg(1 << 22)
    ->Threads(1)
    ->Threads(2)
    ->UseRealTime();

// Batches as an op inserts them; with more ids than the capacity the set overflows now and then.
void BM_TouchedKeySetInsert(benchmark::State& state) {
  static TouchedKeySet* const set = new TouchedKeySet(2'097'152, 1024);
  const auto ids = RandomIds(state.range(0), 2);
  std::size_t next = static_cast<std::size_t>(state.thread_index()) * kBatch % ids.size();
  for (auto _ : state) {
    benchmark::DoNotOptimize(set->Insert(&ids[next], kBatch));
    next = (next + kBatch) % ids.size();
  }
  state.SetItemsProcessed(state.iterations() * kBatch);
}
BENCHMARK(BM_TouchedKeySetInsert)
    ->ArgName("ids")
    ->Arg(1 << 14)
    ->Arg(1 << 20)
    ->Arg(1 << 23)
    ->Threads(1)
    ->Threads(2)
    ->UseRealTime();

}  // namespace
}  // namespace monolith::core
