// Nanoseconds per record of parsing Examples into columns: 40 sparse features, a quarter of them
// with 5 ids and the others with 1, 4 dense numbers and a label, as in `benchmarks/input.py`.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <string>
#include <vector>

#include "core/data/example_parser.h"
#include "core/wire/wire.h"

namespace monolith::core {
namespace {

constexpr int kNumSparse = 40;
constexpr int kNumRecords = 1024;
constexpr int kRecordsPerBlock = 128;

std::string Message(std::uint32_t number, const std::string& bytes) {
  std::string message;
  WireWriter(&message).Bytes(number, bytes);
  return message;
}

std::string SparseName(int i) { return "feature_" + std::to_string(i); }

// A new order of the features in every record, or always the same.
std::vector<std::string> MakeRecords(bool shuffled) {
  std::uint64_t random = 1;
  const auto next = [&random] {
    return random = random * 6364136223846793005u + 1442695040888963407u;
  };
  std::vector<std::string> records;
  for (int i = 0; i < kNumRecords; ++i) {
    std::string record;
    const int first = shuffled ? static_cast<int>((next() >> 33) % kNumSparse) : 0;
    for (int j = 0; j < kNumSparse; ++j) {
      const int feature = (first + j) % kNumSparse;
      std::string fids;
      for (int k = 0; k < (feature % 4 == 0 ? 5 : 1); ++k) {
        const std::uint64_t fid = next() >> 1;
        fids.append(reinterpret_cast<const char*>(&fid), sizeof(fid));
      }
      record +=
          Message(1, Message(1, SparseName(feature)) + Message(2, Message(2, Message(1, fids))));
    }
    record +=
        Message(1, Message(1, "price") + Message(2, Message(3, Message(1, std::string(16, '\1')))));
    WireWriter(&record).Fixed32(101, 0x3f800000);
    records.push_back(record);
  }
  return records;
}

void ParseExamples(benchmark::State& state) {
  ParseSpec spec;
  for (int i = 0; i < kNumSparse; ++i) spec.sparse_names.push_back(SparseName(i));
  spec.sparse_slots.assign(kNumSparse, -1);
  spec.dense = {{"price", 4, DenseType::kFloat, false}, {"label", 1, DenseType::kFloat, false}};
  const ExampleParser parser(spec);
  const std::vector<std::string> records = MakeRecords(state.range(0) != 0);
  ParsedRows rows = parser.MakeRows();
  for (auto _ : state) {
    for (int i = 0; i < kNumRecords; ++i) {
      if (i % kRecordsPerBlock == 0) parser.Clear(&rows);
      parser.Parse(records[i], &rows);
    }
    benchmark::DoNotOptimize(rows.sparse[0].values.begin());
  }
  state.SetItemsProcessed(state.iterations() * kNumRecords);
}
BENCHMARK(ParseExamples)->ArgName("shuffled")->Arg(0)->Arg(1);

}  // namespace
}  // namespace monolith::core
