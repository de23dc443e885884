#include "ops/table/table_snapshot.h"

#include <algorithm>
#include <map>
#include <memory>
#include <shared_mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/wire/entry_dump.h"
#include "core/wire/wire.h"
#include "ops/system/sharded_files.h"
#include "ops/system/status_guard.h"
#include "ops/table/table_calls.h"
#include "tensorflow/core/platform/random.h"

namespace monolith::ops {
namespace {

namespace tf = tensorflow;

// Rows in memory at a time, per file.
constexpr std::size_t kRowsPerDumpedBatch = 1024;

constexpr std::size_t kRowsPerShard = 1000000;
constexpr std::size_t kMaxAutomaticShards = 4;
constexpr int kMaxShards = 99999;  // Five digits in the file names.

// MultiHashTableMetadata: table_name = 1, num_entries = 2, max_update_ts_sec = 3.
std::string EncodeTableRows(const TableRows& counts) {
  std::string record;
  core::WireWriter writer(&record);
  writer.Bytes(1, counts.table);
  writer.Varint(2, counts.rows);
  writer.Varint(3, static_cast<std::uint64_t>(counts.newest_sec));
  return record;
}

bool DecodeTableRows(absl::string_view record, TableRows* counts) {
  core::WireReader reader(std::string_view(record.data(), record.size()));
  for (core::WireField field; reader.Next(&field);) {
    if (field.number == 1) core::ReadScalar(field, &counts->table);
    if (field.number == 2) core::ReadScalar(field, &counts->rows);
    if (field.number == 3) core::ReadScalar(field, &counts->newest_sec);
  }
  return reader.ok();
}

int NumShards(const SaveOptions& options, std::size_t rows) {
  if (options.num_shards > 0) return options.num_shards;
  return static_cast<int>(
      std::min(kMaxAutomaticShards, std::max<std::size_t>(1, rows / kRowsPerShard)));
}

// A table as a save finds it. Taken once for all shards, which must agree on where they meet and on
// what has expired.
struct TableToSave {
  std::shared_ptr<const core::EmbeddingTable> table;
  std::string name;
  std::uint64_t num_places;
  core::Expiry expiry;
};

// What has expired now; `times` outlives it, and so does the table.
core::Expiry ExpiryOf(const core::EmbeddingTable& table, const ExpireTimes& times) {
  return {times.has_value() ? &*times : &table.expire_times(), table.max_update_sec()};
}

// Writes the rows of one shard of every table; `counts` gets how many there were.
absl::Status WriteShard(const std::vector<TableToSave>& tables, int shard, int num_shards,
                        RecordFile* data, std::vector<TableRows>* counts) {
  core::DumpedRows dumped;
  for (const TableToSave& table : tables) {
    std::uint64_t place = table.num_places * shard / num_shards;
    const std::uint64_t end = table.num_places * (shard + 1) / num_shards;
    counts->push_back({table.name});
    while (place < end) {
      dumped.Clear();
      place = table.table->Dump(place, end, kRowsPerDumpedBatch, &table.expiry, &dumped);
      if (dumped.size() == 0) break;
      for (std::size_t i = 0; i < dumped.size(); ++i) TF_RETURN_IF_ERROR(data->Write(dumped[i]));
      counts->back().rows += dumped.size();
    }
    counts->back().newest_sec = table.table->max_update_sec();  // Of all that was written, too.
  }
  return absl::OkStatus();
}

// Writes the data and meta files of a snapshot. `write(shard, data, counts)` writes the rows of one
// shard, on a thread of its own, and says how many there were; it may throw what the core throws.
template <typename Write>
absl::Status WriteFiles(tf::Env* env, const std::string& basename, const std::string& compression,
                        int num_shards, Write&& write) {
  std::vector<std::unique_ptr<RecordFile>> data(num_shards);
  std::vector<std::unique_ptr<RecordFile>> meta(num_shards);
  TF_RETURN_IF_ERROR(ForEachShard(env, num_shards, [&](int shard) -> absl::Status {
    GiveWay();
    TF_RETURN_IF_ERROR(
        RecordFile::Create(env, ShardName(basename, shard, num_shards), compression, &data[shard]));
    std::vector<TableRows> counts;
    absl::Status written;
    TF_RETURN_IF_ERROR(Guard([&] { written = write(shard, data[shard].get(), &counts); }));
    TF_RETURN_IF_ERROR(written);
    TF_RETURN_IF_ERROR(data[shard]->Close());
    TF_RETURN_IF_ERROR(RecordFile::Create(env, ShardName(MetaBasename(basename), shard, num_shards),
                                          "", &meta[shard]));
    for (const TableRows& table : counts) {
      TF_RETURN_IF_ERROR(meta[shard]->Write(EncodeTableRows(table)));
    }
    return meta[shard]->Close();
  }));

  // Overwriting: an old meta file must never stand beside new rows, so it goes first.
  RemoveOtherShards(env, MetaBasename(basename), -1);
  for (const auto& file : data) TF_RETURN_IF_ERROR(file->Commit());
  for (const auto& file : meta) TF_RETURN_IF_ERROR(file->Commit());
  RemoveOtherShards(env, basename, num_shards);
  return absl::OkStatus();
}

}  // namespace

absl::Status ReadExpireTimes(tf::OpKernelConstruction* ctx, bool several_tables,
                             ExpireTimes* times) {
  std::string serialized;
  TF_RETURN_IF_ERROR(ctx->GetAttr("slot_expire_time_config", &serialized));
  if (several_tables && serialized.empty()) return absl::OkStatus();
  return Guard([&] { times->emplace(core::ParseSlotExpireTimeConfig(serialized)); });
}

std::string MetaBasename(const std::string& basename) { return basename + ".meta"; }

absl::Status SaveTables(tf::Env* env, const TableSet& set, const std::string& basename,
                        const std::string& compression, const SaveOptions& options) {
  if (!set.is_for_training()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "Table ", set.name(),
        ": ServingEntryAccessor doesn't support Save; save the training table it came from."));
  }
  const std::shared_lock<std::shared_mutex> lock(set.files_mutex());
  const auto kept = set.tables();
  const TableSet::Tables& current = *kept;
  std::size_t rows = 0;
  std::vector<TableToSave> tables;
  for (std::size_t t = 0; t < current.size(); ++t) {
    rows += current[t]->size();
    tables.push_back({current[t], set.table_names()[t], current[t]->num_places(),
                      ExpiryOf(*current[t], options.expire_times)});
  }
  const int num_shards = NumShards(options, rows);
  if (num_shards > kMaxShards) {
    return absl::InvalidArgumentError(absl::StrCat("nshards must be at most ", kMaxShards, ", got ",
                                                   num_shards, " for ", basename));
  }

  return WriteFiles(env, basename, compression, num_shards,
                    [&](int shard, RecordFile* data, std::vector<TableRows>* counts) {
                      if (options.random_sleep_ms > 0) {
                        env->SleepForMicroseconds(static_cast<std::int64_t>(
                            tf::random::New64() % (options.random_sleep_ms * 1000)));
                      }
                      return WriteShard(tables, shard, num_shards, data, counts);
                    });
}

absl::Status SaveTouchedRows(tf::Env* env, const TableSet& set, const std::string& basename,
                             const std::string& compression, const ExpireTimes& expire_times) {
  const std::shared_lock<std::shared_mutex> lock(set.files_mutex());
  const auto kept = set.tables();
  const TableSet::Tables& tables = *kept;
  std::vector<std::vector<std::int64_t>> ids;
  std::size_t num_ids = 0;
  for (std::size_t t = 0; t < tables.size(); ++t) {
    const core::TouchedRows* touched = set.touched_rows(t);
    if (touched == nullptr) return DoesNotTrack(set);
    ids.push_back(touched->Pending());
    num_ids += ids.back().size();
  }
  const int num_shards = NumShards(SaveOptions(), num_ids);
  return WriteFiles(env, basename, compression, num_shards,
                    [&](int shard, RecordFile* data, std::vector<TableRows>* counts) {
                      core::DumpedRows dumped;
                      for (std::size_t t = 0; t < tables.size(); ++t) {
                        const core::Expiry expiry = ExpiryOf(*tables[t], expire_times);
                        const std::size_t end = ids[t].size() * (shard + 1) / num_shards;
                        const std::size_t begin = ids[t].size() * shard / num_shards;
                        counts->push_back({set.table_names()[t], end - begin});
                        for (std::size_t i = begin; i < end; i += kRowsPerDumpedBatch) {
                          dumped.Clear();
                          tables[t]->DumpIds(ids[t].data() + i,
                                             std::min(kRowsPerDumpedBatch, end - i), &expiry,
                                             &dumped);
                          for (std::size_t r = 0; r < dumped.size(); ++r)
                            TF_RETURN_IF_ERROR(data->Write(dumped[r]));
                        }
                        counts->back().newest_sec = tables[t]->max_update_sec();
                      }
                      return absl::OkStatus();
                    });
}

absl::Status DoesNotTrack(const TableSet& set) {
  return absl::FailedPreconditionError(absl::StrCat(
      "Table ", set.name(),
      " does not remember which rows change; run MonolithTableTrackTouched on it first."));
}

absl::Status ReadRowCounts(tf::Env* env, const std::string& file, std::vector<TableRows>* counts) {
  std::unique_ptr<RecordSource> source;
  TF_RETURN_IF_ERROR(RecordSource::Open(env, file, "", &source));
  tf::tstring record;
  while (true) {
    const absl::Status status = source->Read(&record);
    if (absl::IsOutOfRange(status)) return absl::OkStatus();
    if (!status.ok()) {
      return absl::DataLossError(absl::StrCat("Read table metadata failed! ", status.message()));
    }
    counts->emplace_back();
    if (!DecodeTableRows(record, &counts->back())) {
      return absl::DataLossError(absl::StrCat("Parse table metadata failed! (file ", file, ")"));
    }
  }
}

absl::Status CountSavedRows(tf::Env* env, const std::string& basename,
                            std::vector<TableRows>* counts) {
  std::vector<std::string> files;
  TF_RETURN_IF_ERROR(FindShards(env, MetaBasename(basename), &files));
  std::map<std::string, std::uint64_t> rows;
  for (const std::string& file : files) {
    std::vector<TableRows> in_file;
    TF_RETURN_IF_ERROR(ReadRowCounts(env, file, &in_file));
    for (const TableRows& table : in_file) rows[table.table] += table.rows;
  }
  for (const auto& [table, count] : rows) counts->push_back({table, count});
  return absl::OkStatus();
}

}  // namespace monolith::ops
