#include "ops/table_snapshot.h"

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/entry_dump.h"
#include "core/wire.h"
#include "ops/sharded_files.h"
#include "ops/status_guard.h"
#include "ops/table_calls.h"
#include "tensorflow/core/platform/random.h"

namespace monolith::ops {
namespace {

namespace tf = tensorflow;

// Rows in memory at a time, per file.
constexpr std::size_t kRowsPerBatch = 1024;

constexpr std::size_t kRowsPerShard = 1000000;
constexpr std::size_t kMaxAutomaticShards = 4;
constexpr int kMaxShards = 99999;  // Five digits in the file names.

std::string MetaBasename(const std::string& basename) { return basename + ".meta"; }

// MultiHashTableMetadata: table_name = 1, num_entries = 2.
std::string EncodeTableRows(const TableRows& counts) {
  std::string record;
  core::WireWriter writer(&record);
  writer.Bytes(1, counts.table);
  writer.Varint(2, counts.rows);
  return record;
}

bool DecodeTableRows(absl::string_view record, TableRows* counts) {
  core::WireReader reader(std::string_view(record.data(), record.size()));
  for (core::WireField field; reader.Next(&field);) {
    if (field.number == 1) core::ReadScalar(field, &counts->table);
    if (field.number == 2) core::ReadScalar(field, &counts->rows);
  }
  return reader.ok();
}

absl::Status ReadMeta(tf::Env* env, const std::string& file, std::vector<TableRows>* counts) {
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
  std::int64_t now_sec;
};

// Writes the rows of one shard of every table; `counts` gets how many there were.
absl::Status WriteShard(const std::vector<TableToSave>& tables, int shard, int num_shards,
                        const core::SlotExpireTimes& times, RecordFile* data,
                        std::vector<TableRows>* counts) {
  core::DumpedRows dumped;
  for (const TableToSave& table : tables) {
    std::uint64_t place = table.num_places * shard / num_shards;
    const std::uint64_t end = table.num_places * (shard + 1) / num_shards;
    const core::Expiry expiry{&times, table.now_sec};
    counts->push_back({table.name, 0});
    while (place < end) {
      dumped.Clear();
      place = table.table->Dump(place, end, kRowsPerBatch, &expiry, &dumped);
      if (dumped.size() == 0) break;
      for (std::size_t i = 0; i < dumped.size(); ++i) TF_RETURN_IF_ERROR(data->Write(dumped[i]));
      counts->back().rows += dumped.size();
    }
  }
  return absl::OkStatus();
}

// Reads one file of rows into `tables`, the same way round as WriteShard.
class ShardReader {
 public:
  ShardReader(const TableSet& set, const TableSet::Tables& tables, std::string file)
      : set_(set), tables_(tables), file_(std::move(file)) {}

  absl::Status Open(tf::Env* env, const std::string& compression) {
    return RecordSource::Open(env, file_, compression, &source_);
  }

  // Reads as many rows as the meta file says; rows of tables that the set lacks are passed over.
  absl::Status ReadCounted(const std::vector<TableRows>& counts, int shard) {
    for (const TableRows& saved : counts) {
      const auto& names = set_.table_names();
      // A single table may have been saved under another name.
      const auto found = names.size() == 1 && counts.size() == 1
                             ? names.begin()
                             : std::find(names.begin(), names.end(), saved.table);
      for (std::uint64_t left = saved.rows; left > 0;) {
        std::size_t got = 0;
        TF_RETURN_IF_ERROR(ReadBatch(std::min<std::uint64_t>(left, kRowsPerBatch), &got));
        if (got == 0) {
          return absl::DataLossError(absl::StrCat("Couldn't read all of checkpoint shard ", shard,
                                                  ": file ", file_, " ends ", left,
                                                  " rows of table ", saved.table, " early."));
        }
        left -= got;
        if (found != names.end()) TF_RETURN_IF_ERROR(Store(found - names.begin(), got));
      }
    }
    std::size_t more = 0;
    TF_RETURN_IF_ERROR(ReadBatch(1, &more));
    if (more == 0) return absl::OkStatus();
    return absl::DataLossError(absl::StrCat("Couldn't read all of checkpoint shard ", shard,
                                            ": file ", file_,
                                            " has more rows than its meta file says."));
  }

  // Reads to the end of the file; there is one table.
  absl::Status ReadAll() {
    for (std::size_t got = kRowsPerBatch; got > 0;) {
      TF_RETURN_IF_ERROR(ReadBatch(kRowsPerBatch, &got));
      TF_RETURN_IF_ERROR(Store(0, got));
    }
    return absl::OkStatus();
  }

 private:
  absl::Status ReadBatch(std::size_t rows, std::size_t* got) {
    records_.resize(kRowsPerBatch);
    for (*got = 0; *got < rows; ++*got) {
      const absl::Status status = source_->Read(&records_[*got]);
      if (absl::IsOutOfRange(status)) return absl::OkStatus();
      if (!status.ok()) {
        return absl::DataLossError(
            absl::StrCat("Unable to read data. Data might be corrupted: ", status.message()));
      }
    }
    return absl::OkStatus();
  }

  absl::Status Store(std::size_t table, std::size_t rows) {
    dumps_.resize(kRowsPerBatch);
    for (std::size_t i = 0; i < rows; ++i) {
      const std::string_view record(records_[i].data(), records_[i].size());
      if (!core::ParseEntryDump(record, &dumps_[i])) {
        return absl::DataLossError(
            absl::StrCat("Parse entry failed! Unable to parse data. Data might be corrupted (file ",
                         file_, ")"));
      }
    }
    const absl::Status status = Guard([&] { tables_[table]->Restore(dumps_.data(), rows); });
    if (status.ok()) return status;
    return absl::Status(status.code(),
                        absl::StrCat("The snapshot does not fit table ", set_.table_names()[table],
                                     ": ", status.message(), " (file ", file_, ")"));
  }

  const TableSet& set_;
  const TableSet::Tables& tables_;
  const std::string file_;
  std::unique_ptr<RecordSource> source_;
  std::vector<tf::tstring> records_;
  std::vector<core::EntryDumpView> dumps_;
};

// Copies every row of `from` into `to`.
absl::Status Merge(const core::EmbeddingTable& from, core::EmbeddingTable& to) {
  return Guard([&] {
    core::DumpedRows dumped;
    std::vector<core::EntryDumpView> dumps;
    for (std::uint64_t place = 0; place < from.num_places();) {
      dumped.Clear();
      place = from.Dump(place, from.num_places(), kRowsPerBatch, nullptr, &dumped);
      dumps.resize(dumped.size());
      for (std::size_t i = 0; i < dumped.size(); ++i) {
        if (!core::ParseEntryDump(dumped[i], &dumps[i])) throw std::logic_error("bad own dump");
      }
      to.Restore(dumps.data(), dumps.size());
    }
  });
}

}  // namespace

absl::Status SaveTables(tf::Env* env, const TableSet& set, const std::string& basename,
                        const std::string& compression, const SaveOptions& options) {
  if (!set.is_for_training()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "Table ", set.name(),
        ": ServingEntryAccessor doesn't support Save; save the training table it came from."));
  }
  const TableSet::Tables current = set.tables();
  std::size_t rows = 0;
  std::vector<TableToSave> tables;
  for (std::size_t t = 0; t < current.size(); ++t) {
    rows += current[t]->size();
    tables.push_back(
        {current[t], set.table_names()[t], current[t]->num_places(), current[t]->max_update_sec()});
  }
  const int num_shards = NumShards(options, rows);
  if (num_shards > kMaxShards) {
    return absl::InvalidArgumentError(absl::StrCat("nshards must be at most ", kMaxShards, ", got ",
                                                   num_shards, " for ", basename));
  }
  const core::SlotExpireTimes times(options.expire_times);

  std::vector<std::unique_ptr<RecordFile>> data(num_shards);
  std::vector<std::unique_ptr<RecordFile>> meta(num_shards);
  TF_RETURN_IF_ERROR(ForEachShard(env, num_shards, [&](int shard) -> absl::Status {
    if (options.random_sleep_ms > 0) {
      env->SleepForMicroseconds(
          static_cast<std::int64_t>(tf::random::New64() % (options.random_sleep_ms * 1000)));
    }
    TF_RETURN_IF_ERROR(
        RecordFile::Create(env, ShardName(basename, shard, num_shards), compression, &data[shard]));
    std::vector<TableRows> counts;
    absl::Status written;
    TF_RETURN_IF_ERROR(Guard([&] {
      written = WriteShard(tables, shard, num_shards, times, data[shard].get(), &counts);
    }));
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

absl::Status RestoreTables(tf::Env* env, TableSet& set, const std::string& basename,
                           const std::string& compression, RestoreMode mode) {
  std::vector<std::string> files;
  const absl::Status found = FindShards(env, basename, &files);
  if (absl::IsNotFound(found)) {
    return absl::NotFoundError(absl::StrCat("Unable to find the dump files for: ", set.name(),
                                            " in ", basename, "; ", found.message()));
  }
  TF_RETURN_IF_ERROR(NameTable(found, set.name()));
  std::vector<std::string> meta_files;
  const absl::Status meta_found = FindShards(env, MetaBasename(basename), &meta_files);
  const bool counted = meta_found.ok();
  if (!counted && (!absl::IsNotFound(meta_found) || set.size() > 1)) {
    return NameTable(meta_found, set.name());
  }
  if (counted && meta_files.size() != files.size()) {
    return NameTable(
        absl::DataLossError(absl::StrCat(basename, " has ", files.size(), " data files but ",
                                         meta_files.size(), " meta files.")),
        set.name());
  }

  // Everything goes into new tables first.
  TableSet::Tables fresh;
  for (const auto& table : set.tables()) {
    TF_RETURN_IF_ERROR(
        Guard([&] { fresh.push_back(std::make_shared<core::EmbeddingTable>(table->config())); }));
  }
  TF_RETURN_IF_ERROR(NameTable(ForEachShard(env, static_cast<int>(files.size()),
                                            [&](int shard) -> absl::Status {
                                              ShardReader reader(set, fresh, files[shard]);
                                              TF_RETURN_IF_ERROR(reader.Open(env, compression));
                                              if (!counted) return reader.ReadAll();
                                              std::vector<TableRows> counts;
                                              TF_RETURN_IF_ERROR(
                                                  ReadMeta(env, meta_files[shard], &counts));
                                              return reader.ReadCounted(counts, shard);
                                            }),
                               set.name()));

  if (mode == RestoreMode::kKeep) {
    const TableSet::Tables current = set.tables();
    for (std::size_t t = 0; t < fresh.size(); ++t) {
      if (current[t]->size() == 0) continue;
      TF_RETURN_IF_ERROR(NameTable(Merge(*fresh[t], *current[t]), set.table_names()[t]));
      fresh[t] = current[t];
    }
  }
  set.Replace(std::move(fresh));
  return absl::OkStatus();
}

absl::Status CountSavedRows(tf::Env* env, const std::string& basename,
                            std::vector<TableRows>* counts) {
  std::vector<std::string> files;
  TF_RETURN_IF_ERROR(FindShards(env, MetaBasename(basename), &files));
  std::map<std::string, std::uint64_t> rows;
  for (const std::string& file : files) {
    std::vector<TableRows> in_file;
    TF_RETURN_IF_ERROR(ReadMeta(env, file, &in_file));
    for (const TableRows& table : in_file) rows[table.table] += table.rows;
  }
  for (const auto& [table, count] : rows) counts->push_back({table, count});
  return absl::OkStatus();
}

}  // namespace monolith::ops
