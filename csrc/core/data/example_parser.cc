#include "core/data/example_parser.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "core/data/dense_sink.h"
#include "core/data/fid.h"
#include "core/wire/wire.h"

namespace monolith::core {
namespace {

constexpr std::string_view kLabel = "label";
constexpr std::string_view kWeight = "instance_weight";
constexpr std::string_view kBatchLabel = "__LABEL__";
constexpr std::string_view kBatchLineId = "__LINE_ID__";
constexpr std::size_t kNumV1Slots = 1024;

std::int64_t CountFids(const WireField& field) {
  if (field.type == WireType::kFixed64) return 1;
  if (field.type != WireType::kBytes) return 0;
  if (field.bytes.size() % sizeof(std::uint64_t) != 0) {
    throw std::invalid_argument("its bytes are damaged");
  }
  return static_cast<std::int64_t>(field.bytes.size() / sizeof(std::uint64_t));
}

const char* FirstFid(const WireField& field) {
  return field.type == WireType::kBytes ? field.bytes.data()
                                        : reinterpret_cast<const char*>(&field.value);
}

void AppendFids(const WireField& field, bool convert, FidBuffer* values) {
  values->Append(FirstFid(field), CountFids(field), convert);
}

// Most named features are written in one way, which is read at once: in less than 128 bytes, the
// name and the feature, in this order. Returns false if `bytes` do not begin with one, or if it
// does not have this name.
bool ReadUsualFeature(std::string_view bytes, std::string_view name, std::string_view* feature) {
  // 0a SIZE 0a NAME_SIZE NAME 12 FEATURE_SIZE FEATURE
  const std::size_t behind_name = 4 + name.size();
  if (name.size() >= 0x80 || bytes.size() < behind_name + 2) return false;
  const auto byte = [&](std::size_t at) { return static_cast<std::uint8_t>(bytes[at]); };
  const std::size_t size = 2 + std::size_t{byte(1)};
  if (byte(0) != 0x0a || byte(1) >= 0x80 || byte(2) != 0x0a || byte(3) != name.size()) return false;
  if (size < behind_name + 2 || bytes.size() < size || byte(behind_name) != 0x12) return false;
  if (byte(behind_name + 1) != size - behind_name - 2) return false;
  if (!SameBytes(bytes.substr(4, name.size()), name)) return false;
  *feature = bytes.substr(behind_name + 2, size - behind_name - 2);
  return true;
}

// What a Feature of an Example holds, by the number of its field.
const char* NameKind(std::uint32_t number) {
  static constexpr const char* kNames[] = {
      "fid_v1_list",  "fid_v2_list",  "float_list",   "double_list", "int64_list",  "bytes_list",
      "fid_v2_lists", "float_lists",  "double_lists", "int64_lists", "bytes_lists", "int64_value",
      "float_value",  "double_value", "bytes_value",  "fid_v1_lists"};
  return number >= 1 && number <= 16 ? kNames[number - 1] : "something unknown";
}

DenseSink MakeSink(const DenseSpec& spec, std::int64_t row, DenseColumn* column) {
  const std::int64_t at = row * spec.width;
  return DenseSink(spec.type == DenseType::kFloat ? column->floats.data() + at : nullptr,
                   spec.type == DenseType::kInt64 ? column->integers.data() + at : nullptr,
                   spec.type == DenseType::kString ? column->strings.data() + at : nullptr,
                   spec.width);
}

void CheckCount(std::string_view name, const DenseSink& sink, std::int64_t width) {
  if (sink.count() == width) return;
  throw std::invalid_argument("'" + std::string(name) + "' has " + std::to_string(sink.count()) +
                              " values, but its shape asks for " + std::to_string(width));
}

}  // namespace

ExampleParser::ExampleParser(ParseSpec spec) : spec_(std::move(spec)) {
  const auto num_sparse = static_cast<int>(spec_.sparse_names.size());
  if (spec_.sparse_slots.size() != spec_.sparse_names.size()) {
    throw std::invalid_argument("`sparse_slots` must have a slot, or -1, for each sparse feature.");
  }
  column_of_slot_.assign(kNumV1Slots, kNobody);
  for (int i = 0; i < num_sparse; ++i) {
    const std::int64_t slot = spec_.sparse_slots[i];
    if (slot < -1 || slot >= static_cast<std::int64_t>(kNumV1Slots)) {
      throw std::invalid_argument("slot should be less than 1024, while got " +
                                  std::to_string(slot));
    }
    if (slot >= 0) column_of_slot_[slot] = i;
    if (slot < 0 && !columns_.emplace(spec_.sparse_names[i], i).second) {
      throw std::invalid_argument("Feature '" + spec_.sparse_names[i] + "' is named twice.");
    }
  }
  line_ids_.assign(spec_.dense.size(), nullptr);
  for (std::size_t i = 0; i < spec_.dense.size(); ++i) {
    const DenseSpec& dense = spec_.dense[i];
    if (dense.width < 1 || dense.width > (1 << 20)) {
      throw std::invalid_argument("Dense feature '" + dense.name +
                                  "' must have between 1 and 2^20 values, got " +
                                  std::to_string(dense.width) + ".");
    }
    if (dense.is_line_id) {
      line_ids_[i] = FindLineIdField(dense.name);
      if (line_ids_[i] == nullptr) {
        throw std::invalid_argument(dense.name + " is not in line id, pls check!");
      }
      reads_line_id_ = true;
    } else if (dense.name == kLabel) {
      label_ = static_cast<int>(i);
    } else if (dense.name == kWeight) {
      weight_ = static_cast<int>(i);
    } else if (!columns_.emplace(dense.name, num_sparse + static_cast<int>(i)).second) {
      throw std::invalid_argument("Feature '" + dense.name + "' is named twice.");
    }
    if ((dense.name == kLabel || dense.name == kWeight) && !dense.is_line_id &&
        dense.type != DenseType::kFloat) {
      throw std::invalid_argument("'" + dense.name + "' holds floats; its type must be float32.");
    }
  }
  if (weight_ >= 0 && spec_.dense[weight_].width != 1) {
    throw std::invalid_argument("'instance_weight' is one number; its shape must be 1.");
  }
  if (spec_.format != RecordFormat::kExampleBatch) return;
  // There, these are columns like others.
  if (label_ >= 0) columns_.emplace(kBatchLabel, num_sparse + label_);
  if (weight_ >= 0) columns_.emplace(kWeight, num_sparse + weight_);
  if (reads_line_id_) columns_.emplace(kBatchLineId, kLineId);
}

ParsedRows ExampleParser::MakeRows() const {
  ParsedRows rows;
  rows.sparse.resize(spec_.sparse_names.size());
  rows.dense.resize(spec_.dense.size());
  return rows;
}

void ExampleParser::Parse(std::string_view record, ParsedRows* rows) const {
  const std::int64_t before = rows->num_rows;
  const std::int64_t unasked_before = rows->num_unasked;
  try {
    switch (spec_.format) {
      case RecordFormat::kInstance:
        return ParseInstance(record, rows);
      case RecordFormat::kExample:
        return ParseExample(record, rows);
      case RecordFormat::kExampleBatch:
        return ParseBatch(record, 0, 1, rows);
    }
  } catch (...) {
    Truncate(before, rows);
    rows->num_unasked = unasked_before;
    throw;
  }
}

void ExampleParser::ParseExample(std::string_view record, ParsedRows* rows) const {
  OpenRows(1, rows);
  const std::int64_t row = rows->num_rows;
  NameOrder::Name* last = rows->order.start();
  bool has_label = false;
  DenseSink labels(nullptr, nullptr, nullptr, 0);
  if (label_ >= 0) labels = MakeSink(spec_.dense[label_], row, &rows->dense[label_]);
  WireReader reader(record);
  const char* end = record.data() + record.size();
  for (WireField field;;) {
    const std::string_view rest(reader.cursor(), end - reader.cursor());
    std::string_view feature;
    if (last->next != nullptr && ReadUsualFeature(rest, last->next->text, &feature)) {
      last = last->next;
      AddFeature(last->column, feature, row, rows);
      reader.SkipTo(feature.data() + feature.size());
      continue;
    }
    if (!reader.Next(&field)) break;
    if (field.number == 1 && field.type == WireType::kBytes) {
      AddNamedFeature(field.bytes, row, &last, rows);
    } else if (field.number == 100 && field.type == WireType::kBytes) {
      AddLineId(field.bytes, row, rows);
    } else if (field.number == 101 && label_ >= 0) {
      labels.AddFloats(field);
      has_label = true;
    } else if (field.number == 102 && weight_ >= 0) {
      ReadScalar(field, &rows->dense[weight_].floats[row]);
    }
  }
  if (!reader.ok()) throw std::invalid_argument("its bytes are damaged");
  if (has_label) CheckCount("label", labels, spec_.dense[label_].width);
  CloseRow(rows);
}

void ExampleParser::AddNamedFeature(std::string_view bytes, std::int64_t row,
                                    NameOrder::Name** last, ParsedRows* rows) const {
  std::string_view text;
  std::string_view feature;
  ForEachField(bytes, [&](const WireField& part) {
    if (part.type != WireType::kBytes) return;
    if (part.number == 1) text = part.bytes;
    if (part.number == 2) feature = part.bytes;
  });
  NameOrder::Name* name =
      rows->order.Follow(*last, text, [&](std::string_view of) { return FindColumn(of); });
  if (name != nullptr) *last = name;
  AddFeature(name != nullptr ? name->column : FindColumn(text), feature, row, rows);
}

void ExampleParser::ParseInstance(std::string_view record, ParsedRows* rows) const {
  OpenRows(1, rows);
  const std::int64_t row = rows->num_rows;
  bool has_label = false;
  DenseSink labels(nullptr, nullptr, nullptr, 0);
  if (label_ >= 0) labels = MakeSink(spec_.dense[label_], row, &rows->dense[label_]);
  ForEachField(record, [&](const WireField& field) {
    if (field.number == 1) {
      AddV1Fids(field, rows);
    } else if (field.number == 3 && label_ >= 0) {
      labels.AddFloats(field);
      has_label = true;
    } else if (field.number == 4 && weight_ >= 0) {
      ReadScalar(field, &rows->dense[weight_].floats[row]);
    } else if (field.number == 5 && field.type == WireType::kBytes) {
      AddLineId(field.bytes, row, rows);
    } else if (field.number == 9 && field.type == WireType::kBytes) {
      AddIdlFeature(field.bytes, row, rows);
    }
  });
  if (has_label) CheckCount("label", labels, spec_.dense[label_].width);
  CloseRow(rows);
}

void ExampleParser::AddV1Fids(const WireField& field, ParsedRows* rows) const {
  const std::int64_t count = CountFids(field);
  const char* from = FirstFid(field);
  for (std::int64_t i = 0; i < count; ++i) {
    std::uint64_t fid = 0;
    std::memcpy(&fid, from + i * sizeof(fid), sizeof(fid));
    const std::uint64_t slot = FidV1(fid).slot();
    const int column = column_of_slot_[slot];
    if (column < 0) {
      ++rows->num_unasked;
      rows->unasked_slot = slot;
      continue;
    }
    if (spec_.convert_v1) fid = ConvertV1ToV2(fid);
    *rows->sparse[column].values.Extend(1) = static_cast<std::int64_t>(fid);
  }
}

void ExampleParser::AddIdlFeature(std::string_view feature, std::int64_t row,
                                  ParsedRows* rows) const {
  std::string_view name;
  ForEachField(feature, [&](const WireField& field) {
    if (field.number == 1 && field.type == WireType::kBytes) name = field.bytes;
  });
  const int column = FindColumn(name);
  if (column == kNobody) return;
  const int num_sparse = static_cast<int>(spec_.sparse_names.size());
  try {
    if (column < num_sparse) {
      ForEachField(feature, [&](const WireField& field) {
        if (field.number == 2) AppendFids(field, /*convert=*/false, &rows->sparse[column].values);
      });
      return;
    }
    const DenseSpec& spec = spec_.dense[column - num_sparse];
    DenseSink sink = MakeSink(spec, row, &rows->dense[column - num_sparse]);
    ForEachField(feature, [&](const WireField& field) {
      if (field.number == 3) sink.AddFloats(field);
      if (field.number == 4) sink.AddIntegers(field);
      if (field.number == 5 && field.type == WireType::kBytes) sink.AddString(field.bytes);
    });
    CheckCount(spec.name, sink, spec.width);
  } catch (const std::invalid_argument& e) {
    throw std::invalid_argument(Describe(column) + ": " + e.what());
  }
}

void ExampleParser::AddOtherFeature(int column, std::string_view feature, std::int64_t row,
                                    ParsedRows* rows) const {
  const std::size_t num_sparse = spec_.sparse_names.size();
  try {
    if (static_cast<std::size_t>(column) < num_sparse) {
      AddFids(column, feature, rows);
    } else {
      AddDense(column - num_sparse, feature, row, rows);
    }
  } catch (const std::invalid_argument& e) {
    throw std::invalid_argument(Describe(column) + ": " + e.what());
  }
}

void ExampleParser::AddFids(std::size_t column, std::string_view feature, ParsedRows* rows) const {
  ForEachField(feature, [&](const WireField& kind) {
    if (kind.number > 16) return;  // Of a later version.
    if (kind.number > 2 || kind.type != WireType::kBytes) {
      throw std::invalid_argument(std::string("it holds ") + NameKind(kind.number) +
                                  ", but sparse features are a fid_v1_list or a fid_v2_list");
    }
    const bool convert = kind.number == 1 && spec_.convert_v1;
    ForEachField(kind.bytes, [&](const WireField& field) {
      if (field.number == 1) AppendFids(field, convert, &rows->sparse[column].values);
    });
  });
}

void ExampleParser::AddDense(std::size_t column, std::string_view feature, std::int64_t row,
                             ParsedRows* rows) const {
  const DenseSpec& spec = spec_.dense[column];
  DenseSink sink = MakeSink(spec, row, &rows->dense[column]);
  bool has_value = false;
  ForEachField(feature, [&](const WireField& kind) {
    const bool is_list = kind.number >= 3 && kind.number <= 6 && kind.type == WireType::kBytes;
    has_value |= is_list || (kind.number >= 12 && kind.number <= 15);
    if (is_list) {
      ForEachField(kind.bytes, [&](const WireField& field) {
        if (field.number != 1) return;
        if (kind.number == 3) sink.AddFloats(field);
        if (kind.number == 4) sink.AddDoubles(field);
        if (kind.number == 5) sink.AddIntegers(field);
        if (kind.number == 6 && field.type == WireType::kBytes) sink.AddString(field.bytes);
      });
    } else if (kind.number == 12 && kind.type == WireType::kVarint) {
      sink.AddIntegers(kind);
    } else if (kind.number == 13 && kind.type == WireType::kFixed32) {
      sink.AddFloats(kind);
    } else if (kind.number == 14 && kind.type == WireType::kFixed64) {
      sink.AddDoubles(kind);
    } else if (kind.number == 15 && kind.type == WireType::kBytes) {
      sink.AddString(kind.bytes);
    } else if (kind.number <= 16) {
      throw std::invalid_argument(std::string("it holds ") + NameKind(kind.number) +
                                  ", but dense features are a list of numbers or strings, or one");
    }
  });
  // A weight without a value is 1, and so is a row that has none of another feature 0.
  if (!has_value || (sink.count() == 0 && static_cast<int>(column) == weight_)) return;
  CheckCount(spec.name, sink, spec.width);
}

void ExampleParser::AddLineId(std::string_view line_id, std::int64_t row, ParsedRows* rows) const {
  if (!reads_line_id_) return;
  try {
    for (std::size_t i = 0; i < line_ids_.size(); ++i) {
      const LineIdField* wanted = line_ids_[i];
      if (wanted == nullptr) continue;
      DenseSink sink = MakeSink(spec_.dense[i], row, &rows->dense[i]);
      ForEachField(line_id, [&](const WireField& field) {
        if (field.number != wanted->number) return;
        if (!wanted->is_repeated) sink = MakeSink(spec_.dense[i], row, &rows->dense[i]);
        switch (wanted->kind) {
          case LineIdKind::kInteger:
            return sink.AddIntegers(field);
          case LineIdKind::kFixed64:
            if (field.type == WireType::kFixed64) {
              sink.AddInteger(static_cast<std::int64_t>(field.value));
            }
            return;
          case LineIdKind::kFloat:
            return sink.AddFloats(field);
          case LineIdKind::kString:
            if (field.type == WireType::kBytes) sink.AddString(field.bytes);
            return;
        }
      });
    }
  } catch (const std::invalid_argument& e) {
    throw std::invalid_argument(std::string("Failed to parse the LineId: ") + e.what());
  }
}

void ExampleParser::OpenRows(std::int64_t count, ParsedRows* rows) const {
  for (std::size_t i = 0; i < spec_.dense.size(); ++i) {
    const DenseSpec& spec = spec_.dense[i];
    DenseColumn& column = rows->dense[i];
    const std::int64_t size = (rows->num_rows + count) * spec.width;
    const float missing = static_cast<int>(i) == weight_ ? 1
                          : line_ids_[i] != nullptr      ? line_ids_[i]->default_value
                                                         : 0;
    if (spec.type == DenseType::kFloat) column.floats.resize(size, missing);
    if (spec.type == DenseType::kInt64) column.integers.resize(size, 0);
    if (spec.type == DenseType::kString) column.strings.resize(size);
  }
}

void ExampleParser::CloseRow(ParsedRows* rows) const {
  for (SparseColumn& column : rows->sparse) {
    column.ends.push_back(static_cast<std::int64_t>(column.values.size()));
  }
  ++rows->num_rows;
}

void ExampleParser::Truncate(std::int64_t num_rows, ParsedRows* rows) const {
  rows->num_rows = num_rows;
  OpenRows(0, rows);  // Dense columns have as many rows again.
  for (SparseColumn& column : rows->sparse) {
    column.ends.resize(std::min<std::size_t>(column.ends.size(), num_rows));
    column.values.Truncate(column.ends.empty() ? 0 : column.ends.back());
  }
}

int ExampleParser::FindColumn(std::string_view name) const {
  const auto found = columns_.find(name);
  return found == columns_.end() ? kNobody : found->second;
}

std::string ExampleParser::Describe(int column) const {
  const auto num_sparse = static_cast<int>(spec_.sparse_names.size());
  return column < num_sparse ? "sparse feature '" + spec_.sparse_names[column] + "'"
                             : "dense feature '" + spec_.dense[column - num_sparse].name + "'";
}

}  // namespace monolith::core
