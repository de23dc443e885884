#include "core/wire/entry_dump.h"

namespace monolith::core {

bool ParseEntryDump(std::string_view record, EntryDumpView* view) {
  *view = EntryDumpView();
  WireReader reader(record);
  for (WireField field; reader.Next(&field);) {
    switch (field.number) {
      case 1:
        if (field.type == WireType::kFixed64) {
          view->has_id = true;
          view->id = static_cast<std::int64_t>(field.value);
        }
        break;
      case 2:
        if (!view->num.Add(record, field, &reader)) return false;
        break;
      case 3:
        if (field.type == WireType::kBytes) {
          // Protobuf would merge the two; nobody writes them, and a view cannot hold them.
          if (view->has_opt) return false;
          view->has_opt = true;
          view->opt = field.bytes;
        }
        break;
      case 4:
        ReadScalar(field, &view->last_update_ts_sec);
        break;
      default:
        break;
    }
  }
  return reader.ok();
}

void AppendRemovedEntry(std::int64_t id, std::string* record) {
  WireWriter(record).Fixed64(1, static_cast<std::uint64_t>(id));
}

bool IsRemovedEntry(const EntryDumpView& view) {
  return view.has_id && view.num.size() == 0 && !view.has_opt;
}

}  // namespace monolith::core
