// One saved row: the EntryDump message, read in place.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "core/wire/wire.h"

namespace monolith::core {

// Points into the record it was parsed from, which has to outlive it.
struct EntryDumpView {
  bool has_id = false;
  std::int64_t id = 0;
  FloatsView num;  // The raw values of the row.
  bool has_opt = false;
  std::string_view opt;  // A serialized OptimizerDump.
  std::int64_t last_update_ts_sec = 0;
};

// Returns false, with `view` undefined, if the record is not an EntryDump. The optimizers' part is
// judged by EntryAccessor::Restore. Never allocates.
[[nodiscard]] bool ParseEntryDump(std::string_view record, EntryDumpView* view);

// Appends the record that says that `id` has no row: an EntryDump of nothing but the id.
void AppendRemovedEntry(std::int64_t id, std::string* record);
// Whether a parsed record says so.
[[nodiscard]] bool IsRemovedEntry(const EntryDumpView& view);

}  // namespace monolith::core
