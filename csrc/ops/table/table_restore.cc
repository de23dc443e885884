#include "ops/table/table_restore.h"

#include <algorithm>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/wire/entry_dump.h"
#include "ops/system/sharded_files.h"
#include "ops/system/status_guard.h"
#include "ops/table/table_calls.h"
#include "ops/table/table_snapshot.h"

namespace monolith::ops {
namespace {

namespace tf = tensorflow;

// Rows in memory at a time, per file: enough that those of a stripe of the table come together.
constexpr std::size_t kRowsPerRestoredBatch = 4096;

// One file of rows, with what its meta file says if there is one.
struct ShardFile {
  std::string data;
  std::string meta;
  int shard = 0;
  std::vector<TableRows> counts;
};

// The number in `set` of one of the tables that a file holds, or set.size() if it lacks that.
std::size_t FindTable(const TableSet& set, const std::vector<TableRows>& in_file,
                      const TableRows& saved) {
  const auto& names = set.table_names();
  // A single table may have been saved under another name.
  if (names.size() == 1 && in_file.size() == 1) return 0;
  return std::find(names.begin(), names.end(), saved.table) - names.begin();
}

// A mark for each table: rows are checked and marked, not restored. None: they are restored.
using Marks = std::vector<std::uint32_t>;

// Reads one file of rows into `tables`, the same way round as it was written.
class ShardReader {
 public:
  // In a `delta`, a record may say that a row was removed.
  ShardReader(const TableSet& set, const TableSet::Tables& tables, const RestoreOptions& options,
              const Marks& marks, bool delta, std::string file)
      : set_(set),
        tables_(tables),
        options_(options),
        marks_(marks),
        delta_(delta),
        file_(std::move(file)) {}

  absl::Status Open(tf::Env* env) {
    return RecordSource::Open(env, file_, options_.compression, &source_);
  }

  // Reads as many rows as the meta file says; rows of tables that the set lacks are passed over.
  absl::Status ReadCounted(const std::vector<TableRows>& counts, int shard) {
    for (const TableRows& saved : counts) {
      const std::size_t table = FindTable(set_, counts, saved);
      for (std::uint64_t left = saved.rows; left > 0;) {
        TF_RETURN_IF_ERROR(ReadBatch(std::min<std::uint64_t>(left, kRowsPerRestoredBatch)));
        if (records_.empty()) {
          return absl::DataLossError(absl::StrCat("Couldn't read all of checkpoint shard ", shard,
                                                  ": file ", file_, " ends ", left,
                                                  " rows of table ", saved.table, " early."));
        }
        left -= records_.size();
        if (Reads(table)) TF_RETURN_IF_ERROR(Store(table, saved.newest_sec));
      }
    }
    TF_RETURN_IF_ERROR(ReadBatch(1));
    if (records_.empty()) return absl::OkStatus();
    return absl::DataLossError(absl::StrCat("Couldn't read all of checkpoint shard ", shard,
                                            ": file ", file_,
                                            " has more rows than its meta file says."));
  }

  // Reads to the end of the file; there is one table.
  absl::Status ReadAll() {
    while (true) {
      TF_RETURN_IF_ERROR(ReadBatch(kRowsPerRestoredBatch));
      if (records_.empty()) return absl::OkStatus();
      if (Reads(0)) TF_RETURN_IF_ERROR(Store(0, core::EmbeddingTable::kAnyTime));
    }
  }

 private:
  // Whether the set has a table of this number whose rows are wanted.
  [[nodiscard]] bool Reads(std::size_t table) const {
    return table < set_.size() && options_.RowsOf(table) != RowsToRead::kNone;
  }

  // Reads up to `most` records; none at the end of the file.
  absl::Status ReadBatch(std::size_t most) {
    const absl::Status status = source_->ReadBatch(most, &records_);
    if (status.ok()) return status;
    return absl::DataLossError(
        absl::StrCat("Unable to read data. Data might be corrupted: ", status.message()));
  }

  absl::Status Store(std::size_t table, std::int64_t newest_sec) {
    dumps_.clear();
    removed_.clear();
    for (const std::string_view record : records_) {
      core::EntryDumpView& dump = dumps_.emplace_back();
      if (!core::ParseEntryDump(record, &dump)) {
        return absl::DataLossError(
            absl::StrCat("Parse entry failed! Unable to parse data. Data might be corrupted (file ",
                         file_, ")"));
      }
      if (dump.has_id && !IsOfThisServer(dump.id)) {
        dumps_.pop_back();
      } else if (delta_ && core::IsRemovedEntry(dump)) {
        removed_.push_back(dump.id);
        dumps_.pop_back();
      }
    }
    // An id is in a file once, so it does not matter what comes first.
    const bool values_only = options_.RowsOf(table) == RowsToRead::kValues;
    const absl::Status status = Guard([&] {
      if (!marks_.empty()) {
        tables_[table]->Mark(dumps_.data(), dumps_.size(), marks_[table], values_only);
        return;
      }
      tables_[table]->Restore(dumps_.data(), dumps_.size(), newest_sec, values_only);
      tables_[table]->Erase(removed_.data(), removed_.size());
    });
    if (status.ok()) return status;
    return absl::Status(status.code(),
                        absl::StrCat("The snapshot does not fit table ", set_.table_names()[table],
                                     ": ", status.message(), " (file ", file_, ")"));
  }

  // The rule by which ids are sent to servers; the remainder is that of floor division.
  [[nodiscard]] bool IsOfThisServer(std::int64_t id) const {
    const std::int64_t n = options_.num_servers;
    return n == 1 || (id % n + n) % n == options_.server;
  }

  const TableSet& set_;
  const TableSet::Tables& tables_;
  const RestoreOptions& options_;
  const Marks& marks_;
  const bool delta_;
  const std::string file_;
  std::unique_ptr<RecordSource> source_;
  std::vector<std::string_view> records_;
  std::vector<core::EntryDumpView> dumps_;
  std::vector<std::int64_t> removed_;
};

// Appends the files of the snapshot `basename`.
absl::Status FindFiles(tf::Env* env, const TableSet& set, const std::string& basename,
                       std::vector<ShardFile>* files) {
  std::vector<std::string> data;
  const absl::Status found = FindShards(env, basename, &data);
  if (absl::IsNotFound(found)) {
    return absl::NotFoundError(absl::StrCat("Unable to find the dump files for: ", set.name(),
                                            " in ", basename, "; ", found.message()));
  }
  TF_RETURN_IF_ERROR(NameTable(found, set.name()));
  std::vector<std::string> meta;
  const absl::Status meta_found = FindShards(env, MetaBasename(basename), &meta);
  // Without meta files all rows are of one table, so there must be one.
  if (!meta_found.ok() && (!absl::IsNotFound(meta_found) || set.size() != 1)) {
    return NameTable(meta_found, set.name());
  }
  if (meta_found.ok() && meta.size() != data.size()) {
    return NameTable(
        absl::DataLossError(absl::StrCat(basename, " has ", data.size(), " data files but ",
                                         meta.size(), " meta files.")),
        set.name());
  }
  meta.resize(data.size());
  for (std::size_t i = 0; i < data.size(); ++i) {
    files->push_back({data[i], meta[i], static_cast<int>(i), {}});
    if (meta[i].empty()) continue;
    TF_RETURN_IF_ERROR(NameTable(ReadRowCounts(env, meta[i], &files->back().counts), set.name()));
  }
  return absl::OkStatus();
}

// The files of each layer.
using Layers = std::vector<std::vector<ShardFile>>;

// How many rows of each table a full snapshot brings, about: what its meta files say.
absl::Status CountRows(tf::Env* env, const TableSet& set, const std::vector<ShardFile>& files,
                       const RestoreOptions& options, std::vector<std::uint64_t>* rows) {
  rows->assign(set.size(), 0);
  for (const ShardFile& file : files) {
    // No row takes less than a byte, whatever the meta file says.
    std::uint64_t most = 0;
    TF_RETURN_IF_ERROR(NameTable(env->GetFileSize(file.data, &most), set.name()));
    for (const TableRows& saved : file.counts) {
      const std::size_t table = FindTable(set, file.counts, saved);
      if (table >= rows->size() || options.RowsOf(table) == RowsToRead::kNone) continue;
      (*rows)[table] += std::min(saved.rows, most);
    }
  }
  for (std::uint64_t& of_table : *rows) of_table /= static_cast<std::uint64_t>(options.num_servers);
  return absl::OkStatus();
}

bool AreEmpty(const TableSet::Tables& tables) {
  return std::all_of(tables.begin(), tables.end(),
                     [](const auto& table) { return table->size() == 0; });
}

// Whether new tables with so many rows may stand beside the present ones for a while.
bool FitBeside(const TableSet::Tables& tables, const std::vector<ShardFile>& files,
               const std::vector<std::uint64_t>& rows, const RestoreOptions& options) {
  if (AreEmpty(tables)) return true;
  // Rows that stay would have to be copied; and without meta files nobody knows how many there are.
  const bool is_counted = std::all_of(files.begin(), files.end(),
                                      [](const ShardFile& file) { return !file.meta.empty(); });
  if (options.mode == RestoreMode::kKeep || !is_counted) return false;
  std::uint64_t present = 0, fresh = 0;
  for (std::size_t t = 0; t < tables.size(); ++t) {
    present += tables[t]->MemoryBytes();
    fresh += rows[t] * (sizeof(core::RowHeader) + tables[t]->accessor().row_bytes());
  }
  return std::min(present, fresh) <= std::max(present, fresh) / 4;
}

absl::Status ReadLayers(tf::Env* env, const TableSet& set, const Layers& layers,
                        const RestoreOptions& options, const Marks& marks,
                        const TableSet::Tables& tables) {
  for (std::size_t layer = 0; layer < layers.size(); ++layer) {
    const std::vector<ShardFile>& files = layers[layer];
    const auto read = [&](int i) -> absl::Status {
      const ShardFile& file = files[i];
      ShardReader reader(set, tables, options, marks, /*delta=*/layer > 0, file.data);
      TF_RETURN_IF_ERROR(reader.Open(env));
      return file.meta.empty() ? reader.ReadAll() : reader.ReadCounted(file.counts, file.shard);
    };
    TF_RETURN_IF_ERROR(
        NameTable(ForEachShard(env, static_cast<int>(files.size()), read), set.name()));
  }
  return absl::OkStatus();
}

// Reads everything into new tables.
absl::Status ReadBeside(tf::Env* env, const TableSet& set, const TableSet::Tables& present,
                        const Layers& layers, const std::vector<std::uint64_t>& rows,
                        const RestoreOptions& options, TableSet::Tables* fresh) {
  TF_RETURN_IF_ERROR(Guard([&] {
    for (std::size_t t = 0; t < present.size(); ++t) {
      fresh->push_back(std::make_shared<core::EmbeddingTable>(present[t]->config()));
      fresh->back()->Reserve(rows[t]);
    }
  }));
  return ReadLayers(env, set, layers, options, {}, *fresh);
}

// Reads everything twice: to check it, then into the tables as they are.
absl::Status ReadInPlace(tf::Env* env, const TableSet& set, const TableSet::Tables& tables,
                         const Layers& layers, const RestoreOptions& options) {
  Marks marks;
  for (const auto& table : tables) marks.push_back(table->NewMark());
  TF_RETURN_IF_ERROR(ReadLayers(env, set, layers, options, marks, tables));
  if (options.mode == RestoreMode::kReplace) {
    for (std::size_t t = 0; t < tables.size(); ++t) tables[t]->EraseUnmarked(marks[t]);
  }
  const absl::Status status = ReadLayers(env, set, layers, options, {}, tables);
  if (status.ok()) return status;
  return absl::Status(
      status.code(),
      absl::StrCat(status.message(),
                   "; the files were whole a moment before, and some of their rows are in the "
                   "table now, others are not. Restore again, from these files or older ones."));
}

absl::Status CheckOptions(const RestoreOptions& options) {
  if (options.num_servers >= 1 && options.server >= 0 && options.server < options.num_servers) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("server must be in [0, num_servers), got ",
                                                 options.server, " of ", options.num_servers));
}

}  // namespace

absl::Status RestoreTables(tf::Env* env, TableSet& set, const std::vector<SnapshotLayer>& layers,
                           const RestoreOptions& options) {
  TF_RETURN_IF_ERROR(CheckOptions(options));
  const std::unique_lock<std::shared_mutex> lock(set.files_mutex());
  Layers files(layers.size());
  for (std::size_t layer = 0; layer < layers.size(); ++layer) {
    for (const std::string& basename : layers[layer]) {
      TF_RETURN_IF_ERROR(FindFiles(env, set, basename, &files[layer]));
    }
  }
  std::vector<std::uint64_t> rows;
  TF_RETURN_IF_ERROR(CountRows(env, set, files.front(), options, &rows));
  const auto present = set.tables();
  if (FitBeside(*present, files.front(), rows, options)) {
    TableSet::Tables fresh;
    TF_RETURN_IF_ERROR(ReadBeside(env, set, *present, files, rows, options, &fresh));
    if (options.mode == RestoreMode::kReplace || AreEmpty(*present)) {
      set.Replace(std::move(fresh));
      set.NoteRestore();
      return absl::OkStatus();
    }
    // Somebody has made rows meanwhile, which are to be kept.
  }
  TF_RETURN_IF_ERROR(ReadInPlace(env, set, *present, files, options));
  set.NoteRestore();
  return absl::OkStatus();
}

}  // namespace monolith::ops
