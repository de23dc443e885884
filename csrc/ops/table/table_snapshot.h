// Tables on disk: rows as TFRecords of EntryDump, in several files that are written and read at the
// same time. `compression` of the functions below is "" for a single table, "SNAPPY" for several.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "core/table/table_config.h"
#include "ops/table/table_set.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/platform/env.h"

namespace monolith::ops {

// When rows are too old to be saved: one rule for all tables, or, without one, that of each table's
// own config.
using ExpireTimes = std::optional<core::SlotExpireTimes>;

// Reads `slot_expire_time_config` of an op: a serialized SlotExpireTimeConfig. In ops on several
// tables, an empty one leaves it to the tables.
[[nodiscard]] absl::Status ReadExpireTimes(tensorflow::OpKernelConstruction* ctx,
                                           bool several_tables, ExpireTimes* times);

struct SaveOptions {
  int num_shards = -1;  // Negative: by the number of rows.
  std::int64_t random_sleep_ms = 0;
  ExpireTimes expire_times;
};

// Writes BASENAME-0000i-of-0000N, the rows of table 0, then of table 1 and so on, and
// BASENAME.meta-0000i-of-0000N with the number of rows and the newest update of each. Other threads
// may read and write the tables meanwhile: each row is saved as it is at some moment of the save.
// The files appear under their names only when all of them are complete; memory stays below a few
// megabytes per file.
[[nodiscard]] absl::Status SaveTables(tensorflow::Env* env, const TableSet& set,
                                      const std::string& basename, const std::string& compression,
                                      const SaveOptions& options);

// Writes the rows whose ids are pending in the set's touched rows, in files of the same form; a
// record with nothing but an id says that the id has no row any more. FailedPrecondition if the set
// does not remember which rows change.
[[nodiscard]] absl::Status SaveTouchedRows(tensorflow::Env* env, const TableSet& set,
                                           const std::string& basename,
                                           const std::string& compression,
                                           const ExpireTimes& expire_times);

// The error of a set that does not remember which rows change.
[[nodiscard]] absl::Status DoesNotTrack(const TableSet& set);

// What the names of a snapshot's meta files begin with.
[[nodiscard]] std::string MetaBasename(const std::string& basename);

struct TableRows {
  std::string table;
  std::uint64_t rows = 0;
  // The table's newest update, which may be older than a row that was reinitialized.
  std::int64_t newest_sec = core::EmbeddingTable::kAnyTime;  // As in snapshots that do not say it.
};

// Appends what one meta file says of each table.
[[nodiscard]] absl::Status ReadRowCounts(tensorflow::Env* env, const std::string& file,
                                         std::vector<TableRows>* counts);

// The rows of each table, by the meta files.
[[nodiscard]] absl::Status CountSavedRows(tensorflow::Env* env, const std::string& basename,
                                          std::vector<TableRows>* counts);

}  // namespace monolith::ops
