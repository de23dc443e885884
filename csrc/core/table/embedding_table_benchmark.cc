// What the table costs per key, in batches of 4096: lookups, updates and inserts at sizes that fit
// into no cache, and where the time of a key goes; and what calls of a few keys cost.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "core/table/batch.h"
#include "core/table/embedding_table.h"
#include "core/testing/tables.h"

namespace monolith::core {
namespace {

constexpr std::size_t kBatch = 4096;
constexpr std::size_t kBatches = 256;  // A million keys before they come round again.
constexpr float kLearningRate = 0.01f;

enum class Keys { kZipf, kUniform };
enum class Rows { kAdagrad, kSgd };

// Ranks 0, 1, 2, ... become ids all over the place, none of them twice.
std::int64_t IdOfRank(std::uint64_t rank) {
  std::uint64_t x = (rank + 1) * 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return static_cast<std::int64_t>(x ^ (x >> 31));
}

// Draws rank k < n with probability proportional to 1 / (k + 1)^1.05, by inverting the integral of
// 1 / x^1.05 (Hormann and Derflinger, "Rejection-inversion to generate variates", 1996).
class Zipf {
 public:
  explicit Zipf(std::uint64_t n)
      : n_(static_cast<double>(n)), low_(Integral(1.5) - 1.0), high_(Integral(n_ + 0.5)) {}

  std::uint64_t operator()(std::mt19937_64& random) {
    std::uniform_real_distribution<double> between(low_, high_);
    for (;;) {
      const double u = between(random);
      const double x = Inverse(u);
      const double k = std::clamp(std::round(x), 1.0, n_);
      if (u >= Integral(k + 0.5) - std::pow(k, -kExponent))
        return static_cast<std::uint64_t>(k) - 1;
    }
  }

 private:
  static constexpr double kExponent = 1.05;

  static double Integral(double x) { return std::pow(x, 1 - kExponent) / (1 - kExponent); }
  static double Inverse(double y) { return std::pow(y * (1 - kExponent), 1 / (1 - kExponent)); }

  const double n_;
  const double low_;
  const double high_;
};

// Keys of kBatches batches. `first_rank` shifts them: from `ids` on, none of them is in the table.
std::vector<std::int64_t> MakeKeys(Keys keys, std::uint64_t ids, std::uint64_t first_rank = 0) {
  std::mt19937_64 random(1);
  std::vector<std::int64_t> result(kBatches * kBatch);
  Zipf zipf(ids);
  for (auto& id : result) {
    id = IdOfRank(first_rank + (keys == Keys::kZipf ? zipf(random) : random() % ids));
  }
  return result;
}

EmbeddingHashTableConfig TableConfig(Rows rows, std::size_t dim) {
  return rows == Rows::kAdagrad ? testing::AdagradTable(dim) : testing::SgdTable(dim);
}

// A table with `ids` rows, kept for the next benchmark that asks for the same one. Large tables
// take seconds to build and gigabytes to keep, so there is one at a time.
EmbeddingTable& FullTable(Rows rows, std::uint64_t ids, std::size_t dim) {
  static std::unique_ptr<EmbeddingTable> table;
  static std::string description;
  const std::string wanted = std::to_string(static_cast<int>(rows)) + "/" + std::to_string(ids) +
                             "/" + std::to_string(dim);
  if (description == wanted) return *table;
  table.reset();
  table = std::make_unique<EmbeddingTable>(TableConfig(rows, dim));
  description = wanted;
  std::vector<std::int64_t> batch(kBatch);
  const std::vector<float> values(kBatch * dim, 0.5f);
  for (std::uint64_t first = 0; first < ids; first += kBatch) {
    const std::size_t n = std::min<std::uint64_t>(kBatch, ids - first);
    for (std::size_t i = 0; i < n; ++i) batch[i] = IdOfRank(first + i);
    table->Assign(batch.data(), n, values.data(), {});
  }
  return *table;
}

void CountKeys(benchmark::State& state) {
  const auto keys = static_cast<double>(state.iterations()) * kBatch;
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(kBatch));
  state.counters["per_key"] =
      benchmark::Counter(keys, benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}

void Lookup(benchmark::State& state, Rows rows, Keys keys, std::uint64_t ids, std::size_t dim) {
  const EmbeddingTable& table = FullTable(rows, ids, dim);
  const std::vector<std::int64_t> asked = MakeKeys(keys, ids);
  std::vector<float> out(kBatch * dim);
  std::size_t batch = 0;
  for (auto _ : state) {
    const std::size_t hits = table.Lookup(&asked[batch * kBatch], kBatch, out.data());
    if (hits != kBatch) state.SkipWithError("a key is missing");
    batch = (batch + 1) % kBatches;
  }
  CountKeys(state);
}

void Update(benchmark::State& state, Rows rows, Keys keys, std::uint64_t ids, std::size_t dim) {
  EmbeddingTable& table = FullTable(rows, ids, dim);
  const std::vector<std::int64_t> asked = MakeKeys(keys, ids);
  const std::vector<float> grads(kBatch * dim, 0.01f);
  std::size_t batch = 0;
  for (auto _ : state) {
    table.Optimize(&asked[batch * kBatch], kBatch, grads.data(), &kLearningRate, 1, {});
    batch = (batch + 1) % kBatches;
  }
  CountKeys(state);
}

// From the empty table on, growth included. The longest batch shows how long growth can hold a
// caller up.
void Insert(benchmark::State& state, std::size_t dim) {
  using Clock = std::chrono::steady_clock;
  FullTable(Rows::kSgd, 1, 1);  // Drops a large one.
  EmbeddingTable table(TableConfig(Rows::kAdagrad, dim));
  const std::vector<float> grads(kBatch * dim, 0.01f);
  std::vector<std::int64_t> batch(kBatch);
  std::uint64_t next = 0;
  Clock::duration longest{0};
  for (auto _ : state) {
    for (auto& id : batch) id = IdOfRank(next++);
    const auto start = Clock::now();
    table.Optimize(batch.data(), kBatch, grads.data(), &kLearningRate, 1, {});
    longest = std::max(longest, Clock::now() - start);
  }
  CountKeys(state);
  state.counters["longest_batch_ms"] = std::chrono::duration<double, std::milli>(longest).count();
  state.counters["bytes_per_row"] =
      static_cast<double>(table.MemoryBytes()) / static_cast<double>(table.size());
  if (table.size() != next) state.SkipWithError("a row is missing");
}

// Where the nanoseconds of a key go. Each variant does what the one before does and a little more,
// so the differences are the parts:
//   order      hashing, and sorting the batch by stripe
//   probe      the search in the index, without a row (a lookup of absent ids)
//   row        fetching the row and copying its values (a lookup of present ids)
//   optimizer  the step, with its write back to memory (an update)
// The variants take turns within an iteration, so that all of them meet the same machine.
void Breakdown(benchmark::State& state, Rows rows, Keys keys, std::uint64_t ids, std::size_t dim) {
  using Clock = std::chrono::steady_clock;
  EmbeddingTable& table = FullTable(rows, ids, dim);
  const std::vector<std::int64_t> present = MakeKeys(keys, ids);
  const std::vector<std::int64_t> absent = MakeKeys(keys, ids, /*first_rank=*/ids);
  const std::vector<float> grads(kBatch * dim, 0.01f);
  std::vector<float> out(kBatch * dim);
  Batch ordered;
  Clock::duration order{0};
  Clock::duration without_row{0};
  Clock::duration with_row{0};
  Clock::duration update{0};
  std::size_t batch = 0;
  for (auto _ : state) {
    // A third of the keys apart, so that one variant does not warm the cache for the next.
    const auto at = [&](std::size_t variant) {
      return (batch + variant * kBatches / 3) % kBatches * kBatch;
    };
    const auto start = Clock::now();
    ordered.Order(&present[at(0)], kBatch);
    benchmark::DoNotOptimize(ordered.entries());
    const auto after_order = Clock::now();
    table.Lookup(&absent[at(0)], kBatch, out.data());
    const auto after_absent = Clock::now();
    table.Lookup(&present[at(1)], kBatch, out.data());
    const auto after_present = Clock::now();
    table.Optimize(&present[at(2)], kBatch, grads.data(), &kLearningRate, 1, {});
    const auto after_update = Clock::now();
    order += after_order - start;
    without_row += after_absent - after_order;
    with_row += after_present - after_absent;
    update += after_update - after_present;
    batch = (batch + 1) % kBatches;
  }
  const auto per_key = [&](Clock::duration time) {
    return std::chrono::duration<double, std::nano>(time).count() /
           (static_cast<double>(state.iterations()) * kBatch);
  };
  state.counters["order_ns"] = per_key(order);
  state.counters["probe_ns"] = per_key(without_row - order);
  state.counters["row_ns"] = per_key(with_row - without_row);
  state.counters["optimizer_ns"] = per_key(update - with_row);
  state.counters["update_ns"] = per_key(update);
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(4 * kBatch));
}

enum class Small { kLookup, kAssign, kUpdate, kUpdateSummed };

// A call of `n` keys on a table of 100,000 rows.
void SmallCall(benchmark::State& state, Small call, std::size_t n) {
  constexpr std::uint64_t kIds = 100'000;
  constexpr std::size_t kDim = 16;
  EmbeddingTable& table = FullTable(Rows::kSgd, kIds, kDim);
  const std::vector<std::int64_t> asked = MakeKeys(Keys::kUniform, kIds);
  const std::vector<float> grads(n * kDim, 0.01f);
  std::vector<float> out(n * kDim);
  std::size_t at = 0;
  for (auto _ : state) {
    const std::int64_t* ids = &asked[at];
    if (call == Small::kLookup) table.Lookup(ids, n, out.data());
    if (call == Small::kAssign) table.Assign(ids, n, grads.data(), {});
    if (call == Small::kUpdate) table.Optimize(ids, n, grads.data(), &kLearningRate, 1, {});
    if (call == Small::kUpdateSummed) {
      table.OptimizeSummed(ids, n, grads.data(), &kLearningRate, 1, {});
    }
    at = at + 2 * n < asked.size() ? at + n : 0;
  }
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(n));
}

const bool registered = [] {
  for (const std::size_t n : {1, 16, 64, 65, 128, 256}) {
    const std::pair<const char*, Small> calls[] = {{"Lookup", Small::kLookup},
                                                   {"Assign", Small::kAssign},
                                                   {"Update", Small::kUpdate},
                                                   {"UpdateSummed", Small::kUpdateSummed}};
    for (const auto& [name, call] : calls) {
      benchmark::RegisterBenchmark(
          (std::string("Small") + name + "/keys:" + std::to_string(n)).c_str(),
          [call = call, n](benchmark::State& state) { SmallCall(state, call, n); });
    }
  }
  for (const std::uint64_t ids : {1'000'000, 10'000'000}) {
    for (const std::size_t dim : {16, 32}) {
      const std::string size = "/ids:" + std::to_string(ids) + "/dim:" + std::to_string(dim);
      for (const Rows rows : {Rows::kAdagrad, Rows::kSgd}) {
        const std::string optimizer = rows == Rows::kAdagrad ? "/adagrad" : "/sgd";
        const auto add = [&](const std::string& name, auto function) {
          for (const Keys keys : {Keys::kZipf, Keys::kUniform}) {
            const std::string suffix = keys == Keys::kZipf ? "/zipf" : "/uniform";
            benchmark::RegisterBenchmark(
                (name + optimizer + size + suffix).c_str(),
                [=](benchmark::State& state) { function(state, rows, keys, ids, dim); });
          }
        };
        add("Lookup", Lookup);
        add("Update", Update);
        add("Breakdown", Breakdown);
      }
      benchmark::RegisterBenchmark(("Insert/adagrad" + size).c_str(),
                                   [=](benchmark::State& state) { Insert(state, dim); })
          ->Iterations(static_cast<std::int64_t>(ids / kBatch))
          ->Unit(benchmark::kMicrosecond);
    }
  }
  return true;
}();

}  // namespace
}  // namespace monolith::core
