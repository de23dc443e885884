// Nanoseconds per row of what a table does with a row: one optimizer step, a read, a dump, a
// restore. Rows fit into the first-level cache; what memory costs is the table's benchmark.
#include <benchmark/benchmark.h>

#include <memory>
#include <string>
#include <vector>

#include "core/row/entry_accessor.h"
#include "core/testing/optimizers.h"

namespace monolith::core {
namespace {

constexpr std::size_t kRows = 64;

struct Rows {
  Rows(const OptimizerConfig& optimizer, std::size_t dim) {
    SegmentConfig segment;
    segment.init_config.emplace().type = ZerosConfig();
    segment.opt_config = optimizer;
    segment.dim_size = static_cast<std::int32_t>(dim);
    EntryConfig config;
    config.segments = {segment};
    accessor = MakeEntryAccessor(config);
    stride = (accessor->row_bytes() + 7) / 8 * 8;
    memory.resize(kRows * stride / 8);
    for (std::size_t i = 0; i < kRows; ++i) accessor->Init(row(i));
    grads.assign(kRows * dim, 0.01f);
    for (std::size_t i = 0; i < kRows; ++i) {
      all_rows.push_back(row(i));
      all_grads.push_back(grads.data() + i * dim);
    }
  }

  std::byte* row(std::size_t i) { return reinterpret_cast<std::byte*>(memory.data()) + i * stride; }

  std::unique_ptr<EntryAccessor> accessor;
  std::size_t stride = 0;
  std::vector<double> memory;
  std::vector<float> grads;
  std::vector<std::byte*> all_rows;
  std::vector<const float*> all_grads;
};

void CountRows(benchmark::State& state) {
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(kRows));
  state.counters["per_row"] =
      benchmark::Counter(static_cast<double>(state.iterations() * kRows),
                         benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}

void Optimize(benchmark::State& state, const OptimizerConfig& config, std::size_t dim) {
  Rows rows(config, dim);
  const float learning_rate = 0.01f;
  std::int64_t step = 0;
  for (auto _ : state) {
    ++step;
    rows.accessor->Optimize(kRows, rows.all_rows.data(), rows.all_grads.data(), &learning_rate,
                            step);
  }
  CountRows(state);
}

void Read(benchmark::State& state, const OptimizerConfig& config, std::size_t dim) {
  Rows rows(config, dim);
  std::vector<float> values(dim);
  for (auto _ : state) {
    for (std::size_t i = 0; i < kRows; ++i) {
      rows.accessor->Read(rows.row(i), values.data());
      benchmark::DoNotOptimize(values.data());
    }
  }
  CountRows(state);
}

void AppendDump(benchmark::State& state, const OptimizerConfig& config, std::size_t dim) {
  Rows rows(config, dim);
  std::string record;
  for (auto _ : state) {
    for (std::size_t i = 0; i < kRows; ++i) {
      record.clear();
      rows.accessor->AppendDump(rows.row(i), true, 1, 1'700'000'000, &record);
      benchmark::DoNotOptimize(record.data());
    }
  }
  CountRows(state);
}

void ParseAndRestore(benchmark::State& state, const OptimizerConfig& config, std::size_t dim) {
  Rows rows(config, dim);
  std::string record;
  rows.accessor->AppendDump(rows.row(0), true, 1, 1'700'000'000, &record);
  for (auto _ : state) {
    for (std::size_t i = 0; i < kRows; ++i) {
      EntryDumpView view;
      if (!ParseEntryDump(record, &view)) state.SkipWithError("the record does not parse");
      rows.accessor->Restore(view, rows.row(i));
    }
  }
  CountRows(state);
}

const bool registered = [] {
  for (const testing::NamedOptimizer& optimizer : testing::AllOptimizers()) {
    if (optimizer.name == "batch_softmax") continue;  // Has one dimension only.
    for (const std::size_t dim : {16, 32}) {
      const std::string suffix = "/" + optimizer.name + "/dim:" + std::to_string(dim);
      const OptimizerConfig config = optimizer.config;
      const auto add = [&](const char* name, auto function) {
        benchmark::RegisterBenchmark((name + suffix).c_str(), [=](benchmark::State& state) {
          function(state, config, dim);
        });
      };
      add("Optimize", Optimize);
      if (optimizer.name != "sgd" && optimizer.name != "adagrad" && optimizer.name != "adam") {
        continue;
      }
      add("Read", Read);
      add("AppendDump", AppendDump);
      add("ParseAndRestore", ParseAndRestore);
    }
  }
  return true;
}();

}  // namespace
}  // namespace monolith::core
