// Tables, saved rows and threads for tests and benchmarks of the table.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/table/embedding_table.h"
#include "core/testing/optimizers.h"

#if defined(__SANITIZE_THREAD__)
// The deadlock detector of ThreadSanitizer gives up at 64 locks held by one thread, and clearing a
// table takes one more. Races are found all the same.
extern "C" __attribute__((used)) inline const char* __tsan_default_options() {
  return "detect_deadlocks=0";
}
#endif

namespace monolith::core::testing {

// As many ids as a call works off in several pieces, the last of them short.
#if defined(MONOLITH_SANITIZED)
inline constexpr std::size_t kLongCall = (std::size_t{1} << 16) + 77;
#else
inline constexpr std::size_t kLongCall = (std::size_t{1} << 18) + 77;
#endif

template <typename Member>
InitializerConfig Initial(const Member& member) {
  InitializerConfig config;
  config.type = member;
  return config;
}

inline InitializerConfig InitialConstant(float value) {
  ConstantsConfig config;
  config.constant = value;
  return Initial(config);
}

inline SegmentConfig TrainingSegment(
    const OptimizerConfig& optimizer, std::size_t dim,
    const InitializerConfig& initializer = Initial(ZerosConfig())) {
  SegmentConfig segment;
  segment.init_config = initializer;
  segment.opt_config = optimizer;
  segment.dim_size = static_cast<std::int32_t>(dim);
  return segment;
}

inline EmbeddingHashTableConfig TrainingTable(std::vector<SegmentConfig> segments) {
  EmbeddingHashTableConfig config;
  config.type = EmbeddingHashTableConfig::Type::kCuckoo;
  config.entry_config.segments = std::move(segments);
  return config;
}

inline EmbeddingHashTableConfig SgdTable(std::size_t dim) {
  return TrainingTable({TrainingSegment(Wrap(SgdConfig()), dim)});
}

inline EmbeddingHashTableConfig AdagradTable(std::size_t dim) {
  return TrainingTable({TrainingSegment(Wrap(AdagradConfig()), dim)});
}

inline EmbeddingHashTableConfig ServingTable(std::size_t dim, bool skip_zero_embedding) {
  SegmentConfig segment;
  segment.comp_config.emplace().type = Fp32Config();
  segment.dim_size = static_cast<std::int32_t>(dim);
  EmbeddingHashTableConfig config = TrainingTable({segment});
  config.entry_config.entry_type = EntryConfig::Type::kServing;
  config.skip_zero_embedding = skip_zero_embedding;
  return config;
}

inline std::vector<float> LookupAll(const EmbeddingTable& table,
                                    const std::vector<std::int64_t>& ids) {
  std::vector<float> rows(ids.size() * table.dim(), -1.0f);
  table.Lookup(ids.data(), ids.size(), rows.data());
  return rows;
}

// The first value of an id's row; 0 if it has none.
inline float LookupOne(const EmbeddingTable& table, std::int64_t id) {
  return LookupAll(table, {id})[0];
}

// Gives every id a row that holds `value` throughout.
inline void AssignAll(EmbeddingTable& table, const std::vector<std::int64_t>& ids, float value,
                      const WriteOptions& options = {}) {
  const std::vector<float> rows(ids.size() * table.dim(), value);
  table.Assign(ids.data(), ids.size(), rows.data(), options);
}

// The ids [first, last).
inline std::vector<std::int64_t> Range(std::int64_t first, std::int64_t last) {
  std::vector<std::int64_t> ids(static_cast<std::size_t>(last - first));
  std::iota(ids.begin(), ids.end(), first);
  return ids;
}

inline WriteOptions At(std::int64_t update_time_sec) {
  WriteOptions options;
  options.update_time_sec = update_time_sec;
  return options;
}

// One optimizer step on every id, with the same gradient everywhere.
inline void Step(EmbeddingTable& table, const std::vector<std::int64_t>& ids, float grad,
                 float learning_rate, std::int64_t global_step = 1,
                 const WriteOptions& options = {}) {
  const std::vector<float> grads(ids.size() * table.dim(), grad);
  const std::vector<float> rates(table.accessor().num_segments(), learning_rate);
  table.Optimize(ids.data(), ids.size(), grads.data(), rates.data(), global_step, options);
}

// The id's serialized EntryDump; empty if it has no row.
inline std::string LookupEntry(const EmbeddingTable& table, std::int64_t id) {
  std::string entry = "not written";
  table.LookupEntry(&id, 1, &entry);
  return entry;
}

// The serialized rows at places [first, end), `at_once` of them per call.
inline std::vector<std::string> DumpPlaces(const EmbeddingTable& table, std::uint64_t first,
                                           std::uint64_t end, std::size_t at_once = 1000,
                                           const Expiry* expiry = nullptr) {
  std::vector<std::string> records;
  DumpedRows dumped;
  for (std::uint64_t place = first; place < end;) {
    dumped.Clear();
    place = table.Dump(place, end, at_once, expiry, &dumped);
    for (std::size_t i = 0; i < dumped.size(); ++i) records.emplace_back(dumped[i]);
    if (dumped.size() < at_once) break;
  }
  return records;
}

inline std::vector<std::string> DumpAll(const EmbeddingTable& table,
                                        const Expiry* expiry = nullptr) {
  return DumpPlaces(table, 0, table.num_places(), 1000, expiry);
}

// All rows, in an order that does not depend on where they stand.
inline std::vector<std::string> SortedDump(const EmbeddingTable& table) {
  std::vector<std::string> records = DumpAll(table);
  std::sort(records.begin(), records.end());
  return records;
}

inline EntryDumpView ParseRecord(const std::string& record) {
  EntryDumpView view;
  if (!ParseEntryDump(record, &view)) throw std::runtime_error("The record is not an EntryDump.");
  return view;
}

inline void RestoreAll(EmbeddingTable& table, const std::vector<std::string>& records) {
  std::vector<EntryDumpView> views;
  views.reserve(records.size());
  for (const std::string& record : records) views.push_back(ParseRecord(record));
  table.Restore(views.data(), views.size());
}

// Runs `work(i)` for every i below `n`, each on a thread of its own, and waits for all.
template <typename Work>
void RunThreads(int n, const Work& work) {
  std::vector<std::thread> threads;
  threads.reserve(static_cast<std::size_t>(n));
  for (int i = 0; i < n; ++i) threads.emplace_back([&work, i] { work(i); });
  for (std::thread& thread : threads) thread.join();
}

inline Parallel OnThreads(int n) {
  return [n](const std::function<void()>& work) { RunThreads(n, [&work](int) { work(); }); };
}

}  // namespace monolith::core::testing
