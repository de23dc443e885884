#include "core/data/row_view.h"

#include <cstring>
#include <stdexcept>

#include "core/data/dense_sink.h"
#include "core/data/fid.h"

namespace monolith::core {
namespace {

constexpr std::uint32_t kMaxKind = 16;  // Of the values that a Feature of an Example may have.

std::uint32_t LabelNumber(RecordFormat format) {
  return format == RecordFormat::kInstance ? 3 : 101;
}

std::uint32_t LineIdNumber(RecordFormat format) {
  return format == RecordFormat::kInstance ? 5 : 100;
}

[[noreturn]] void RefuseBytes() { throw std::invalid_argument("its bytes are damaged"); }

// Numbers of fixed size, packed or one alone.
template <typename Number, typename Target>
void AppendFixed(const WireField& field, std::vector<Target>* values) {
  constexpr WireType kSingle = sizeof(Number) == 4 ? WireType::kFixed32 : WireType::kFixed64;
  const char* from = reinterpret_cast<const char*>(&field.value);
  std::size_t size = sizeof(Number);
  if (field.type == WireType::kBytes) {
    from = field.bytes.data();
    size = field.bytes.size();
  } else if (field.type != kSingle) {
    return;
  }
  if (size % sizeof(Number) != 0) RefuseBytes();
  for (std::size_t at = 0; at < size; at += sizeof(Number)) {
    Number number = 0;
    std::memcpy(&number, from + at, sizeof(number));
    values->push_back(static_cast<Target>(number));
  }
}

void AppendIntegers(const WireField& field, std::vector<std::int64_t>* values) {
  if (field.type == WireType::kVarint) values->push_back(static_cast<std::int64_t>(field.value));
  if (field.type != WireType::kBytes) return;
  std::size_t at = 0;
  while (at < field.bytes.size()) {
    std::uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
      if (at == field.bytes.size() || shift > 63) RefuseBytes();
      const auto byte = static_cast<std::uint8_t>(field.bytes[at++]);
      value |= std::uint64_t{byte & 0x7fu} << shift;
      if (byte < 0x80) break;
    }
    values->push_back(static_cast<std::int64_t>(value));
  }
}

void AppendFidsOf(const WireField& field, bool is_v1, std::vector<RowFid>* fids) {
  std::vector<std::uint64_t> values;
  AppendFixed<std::uint64_t>(field, &values);
  for (const std::uint64_t fid : values) {
    fids->push_back({fid, is_v1 ? FidV1(fid).slot() : FidV2(fid).slot()});
  }
}

// Field 1 of a list of fids.
void AppendFidList(std::string_view list, bool is_v1, std::vector<RowFid>* fids) {
  ForEachField(list, [&](const WireField& field) {
    if (field.number == 1) AppendFidsOf(field, is_v1, fids);
  });
}

void AppendFidsOfFeature(std::string_view feature, std::vector<RowFid>* fids) {
  ForEachField(feature, [&](const WireField& kind) {
    if (kind.type != WireType::kBytes) return;
    if (kind.number == 1 || kind.number == 2) AppendFidList(kind.bytes, kind.number == 1, fids);
    if (kind.number != 7 && kind.number != 16) return;
    ForEachField(kind.bytes, [&](const WireField& list) {
      if (list.number != 1 || list.type != WireType::kBytes) return;
      AppendFidList(list.bytes, kind.number == 16, fids);
    });
  });
}

void AppendFidsOfIdlFeature(std::string_view feature, std::vector<RowFid>* fids) {
  ForEachField(feature, [&](const WireField& field) {
    if (field.number == 2) AppendFidsOf(field, /*is_v1=*/false, fids);
    if (field.number == 6 && field.type == WireType::kBytes) {
      AppendFidList(field.bytes, /*is_v1=*/false, fids);
    }
  });
}

void AppendLineIdValue(LineIdKind kind, const WireField& field, FieldValues* values) {
  switch (kind) {
    case LineIdKind::kInteger:
      return AppendIntegers(field, &values->integers);
    case LineIdKind::kFixed64:
      return AppendFixed<std::uint64_t>(field, &values->integers);
    case LineIdKind::kFloat:
      return AppendFixed<float>(field, &values->floats);
    case LineIdKind::kString:
      if (field.type == WireType::kBytes) values->strings.push_back(field.bytes);
  }
}

void KeepLast(FieldValues* values) {
  const auto keep = [](auto* all) {
    if (all->size() > 1) all->erase(all->begin(), all->end() - 1);
  };
  keep(&values->integers);
  keep(&values->floats);
  keep(&values->strings);
}

// A list of values, or one value, of a Feature; `number` is that of its kind.
void AppendValue(std::uint32_t number, const WireField& field, FieldValues* values) {
  switch (number) {
    case 3:
    case 13:
      return AppendFixed<float>(field, &values->floats);
    case 4:
    case 14:
      return AppendFixed<double>(field, &values->floats);
    case 5:
    case 12:
      return AppendIntegers(field, &values->integers);
    default:
      if (field.type == WireType::kBytes) values->strings.push_back(field.bytes);
  }
}

FieldValues ReadValues(std::string_view feature) {
  FieldValues values;
  ForEachField(feature, [&](const WireField& kind) {
    if (kind.number > kMaxKind) return;  // Of a later version.
    if (kind.number >= 12 && kind.number <= 15) return AppendValue(kind.number, kind, &values);
    if (kind.number < 3 || kind.number > 6) {
      throw std::invalid_argument("it holds neither numbers nor strings");
    }
    if (kind.type != WireType::kBytes) return;
    ForEachField(kind.bytes, [&](const WireField& field) {
      if (field.number == 1) AppendValue(kind.number, field, &values);
    });
  });
  return values;
}

}  // namespace

RowView::RowView(RecordFormat format, std::string_view row) : format_(format), row_(row) {
  const std::uint32_t label = LabelNumber(format);
  ForEachField(row, [&](const WireField& field) {
    if (field.number == label) AppendFixed<float>(field, &labels_);
    if (IsLineId(field)) line_ids_.push_back(field.bytes);
  });
}

bool RowView::IsLineId(const WireField& field) const {
  return field.number == LineIdNumber(format_) && field.type == WireType::kBytes;
}

FieldValues RowView::ReadLineId(const LineIdField& wanted) const {
  FieldValues values;
  if (!wanted.is_repeated) {
    if (wanted.kind == LineIdKind::kString) {
      values.strings.push_back("");
    } else if (wanted.kind == LineIdKind::kFloat) {
      values.floats.push_back(wanted.default_value);
    } else {
      values.integers.push_back(0);
    }
  }
  for (const std::string_view line_id : line_ids_) {
    ForEachField(line_id, [&](const WireField& field) {
      if (field.number == wanted.number) AppendLineIdValue(wanted.kind, field, &values);
    });
  }
  // Of a single field, the last value counts.
  if (!wanted.is_repeated) KeepLast(&values);
  return values;
}

FieldValues RowView::ReadFeature(std::string_view name, LineIdKind kind) const {
  FieldValues values;
  ForEachField(row_, [&](const WireField& field) {
    if (format_ != RecordFormat::kExample || field.number != 1 || field.type != WireType::kBytes) {
      return;
    }
    std::string_view found;
    std::string_view feature;
    ForEachField(field.bytes, [&](const WireField& part) {
      if (part.type != WireType::kBytes) return;
      if (part.number == 1) found = part.bytes;
      if (part.number == 2) feature = part.bytes;
    });
    if (found == name) values = ReadValues(feature);
  });
  if ((kind != LineIdKind::kInteger && !values.integers.empty()) ||
      (kind != LineIdKind::kFloat && !values.floats.empty()) ||
      (kind != LineIdKind::kString && !values.strings.empty())) {
    throw std::invalid_argument("feature '" + std::string(name) +
                                "' holds values of another type than `field_type` says");
  }
  return values;
}

std::vector<RowFid> RowView::ReadFids() const {
  std::vector<RowFid> fids;
  ForEachField(row_, [&](const WireField& field) {
    if (format_ == RecordFormat::kInstance) {
      if (field.number == 1) AppendFidsOf(field, /*is_v1=*/true, &fids);
      if (field.number == 9 && field.type == WireType::kBytes) {
        AppendFidsOfIdlFeature(field.bytes, &fids);
      }
    } else if (field.number == 1 && field.type == WireType::kBytes) {  // named_feature
      ForEachField(field.bytes, [&](const WireField& part) {
        if (part.number == 2 && part.type == WireType::kBytes) {
          AppendFidsOfFeature(part.bytes, &fids);
        }
      });
    }
  });
  return fids;
}

std::string RowView::Change(const std::vector<float>& labels, std::string_view more_line_id) const {
  std::string changed;
  changed.reserve(row_.size() + more_line_id.size() + labels.size() * sizeof(float) + 32);
  WireReader reader(row_);
  const char* begin = reader.cursor();
  for (WireField field; reader.Next(&field); begin = reader.cursor()) {
    if (field.number == LabelNumber(format_) || IsLineId(field)) continue;
    changed.append(begin, reader.cursor() - begin);
  }
  WireWriter writer(&changed);
  if (!labels.empty()) {
    writer.Bytes(LabelNumber(format_),
                 std::string_view(reinterpret_cast<const char*>(labels.data()),
                                  labels.size() * sizeof(float)));
  }
  std::string line_id;
  for (const std::string_view part : line_ids_) line_id.append(part);
  line_id.append(more_line_id);
  if (!line_ids_.empty() || !line_id.empty()) writer.Bytes(LineIdNumber(format_), line_id);
  return changed;
}

}  // namespace monolith::core
