// Tables back from disk: what table_snapshot.h writes, read by as many servers as there are now.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "ops/table/table_set.h"
#include "tensorflow/core/platform/env.h"

namespace monolith::ops {

// What becomes of rows that are in memory but not in the snapshot.
enum class RestoreMode { kReplace, kKeep };

// What is read of the rows of a table: nothing if they are of another form, and the values without
// the states if only the optimizers have changed.
enum class RowsToRead { kAll, kValues, kNone };

// Basenames of snapshots that together hold all rows, each row in one of them: those of all servers
// that saved.
using SnapshotLayer = std::vector<std::string>;

struct RestoreOptions {
  std::string compression;  // "" or "SNAPPY", as it was saved.
  RestoreMode mode = RestoreMode::kReplace;
  // Of the rows, only those with floormod(id, num_servers) == server are kept.
  std::int64_t server = 0;
  std::int64_t num_servers = 1;
  std::vector<RowsToRead> rows;  // Of each table of the set; empty: all rows of all tables.

  [[nodiscard]] RowsToRead RowsOf(std::size_t table) const {
    return rows.empty() ? RowsToRead::kAll : rows[table];
  }
};

// Reads a full snapshot, the first layer, and what SaveTouchedRows has written since, the others in
// order. All files are read and checked before any table changes, so an error leaves the tables as
// they were. Tables that only the snapshot has are passed over; with kKeep, tables and rows that it
// lacks stay as they are. Snapshots of a single table may come without meta files, from before
// those were written; then a file cut exactly between two rows is not noticed.
//
// New tables take the place of the old ones if one side is empty or much smaller than the other.
// Otherwise there is no memory for both: after the check, rows that the snapshot lacks are removed,
// and the files are read again, row by row into the tables as they are. Lookups meanwhile find old
// rows and new ones. Should a file be lost just then, the error says that some rows are old.
[[nodiscard]] absl::Status RestoreTables(tensorflow::Env* env, TableSet& set,
                                         const std::vector<SnapshotLayer>& layers,
                                         const RestoreOptions& options);

}  // namespace monolith::ops
