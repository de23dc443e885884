// The column-major half of the parser: ExampleBatches.
#include <algorithm>
#include <stdexcept>

#include "core/data/dense_sink.h"
#include "core/data/example_parser.h"
#include "core/wire/wire.h"

namespace monolith::core {
namespace {

// A damaged number must not ask for all memory: a batch has no more rows than bytes, as each of
// its columns takes two for a row; and shared ids are repeated no more often than this.
constexpr std::int64_t kRowsOfAnyBatch = 1 << 16;
constexpr std::int64_t kMostShared = std::int64_t{1} << 28;

// Calls `fn` with the features of a column until it returns false, and `other` with its other
// fields up to there. Most features have less than 128 bytes and are read at once.
template <typename Fn, typename Other>
void ForEachFeature(std::string_view column, const Fn& fn, const Other& other) {
  WireReader reader(column);
  const char* end = column.data() + column.size();
  for (WireField field;;) {
    const char* at = reader.cursor();
    const std::size_t size = end - at < 2 ? 0x80 : static_cast<std::uint8_t>(at[1]);
    if (size < 0x80 && *at == 0x12 && size <= static_cast<std::size_t>(end - at - 2)) {
      reader.SkipTo(at + 2 + size);
      if (!fn(std::string_view(at + 2, size))) return;
    } else if (!reader.Next(&field)) {
      break;
    } else if (field.number == 2 && field.type == WireType::kBytes) {
      if (!fn(field.bytes)) return;
    } else {
      other(field);
    }
  }
  if (!reader.ok()) throw std::invalid_argument("its bytes are damaged");
}

}  // namespace

void ExampleParser::ParsePart(std::string_view record, std::int64_t part, std::int64_t num_parts,
                              ParsedRows* rows) const {
  const std::int64_t before = rows->num_rows;
  try {
    ParseBatch(record, part, num_parts, rows);
  } catch (...) {
    Truncate(before, rows);
    throw;
  }
}

void ExampleParser::ParseBatch(std::string_view record, std::int64_t part, std::int64_t num_parts,
                               ParsedRows* rows) const {
  std::int32_t batch_size = 0;
  ForEachField(record, [&](const WireField& field) {
    if (field.number == 3) ReadScalar(field, &batch_size);
  });
  if (batch_size < 0 ||
      batch_size > std::max(kRowsOfAnyBatch, static_cast<std::int64_t>(record.size()))) {
    throw std::invalid_argument("its batch_size of " + std::to_string(batch_size) +
                                " does not fit its " + std::to_string(record.size()) + " bytes");
  }
  OpenRows(batch_size, rows);
  std::vector<bool> seen(spec_.sparse_names.size(), false);
  ForEachField(record, [&](const WireField& field) {
    if (field.number != 1 || field.type != WireType::kBytes) return;
    std::string_view name;
    WireReader reader(field.bytes);
    for (WireField inner; reader.Next(&inner);) {
      if (inner.number != 1 || inner.type != WireType::kBytes) continue;
      name = inner.bytes;  // It comes first, so that columns of others cost nothing.
      break;
    }
    const int column = FindColumn(name);
    if (column == kNobody || std::max(column, 0) % num_parts != part) return;
    ParseColumn(column, name, field.bytes, batch_size, &seen, rows);
  });
  for (std::size_t i = part; i < seen.size(); i += num_parts) {
    SparseColumn& column = rows->sparse[i];
    if (!seen[i]) {
      column.ends.resize(column.ends.size() + batch_size,
                         static_cast<std::int64_t>(column.values.size()));
    }
  }
  rows->num_rows += batch_size;
}

void ExampleParser::ParseColumn(int column, std::string_view name, std::string_view bytes,
                                std::int64_t num_rows, std::vector<bool>* seen,
                                ParsedRows* rows) const {
  // Its type and number of features come behind them.
  std::int32_t type = 0;
  std::int64_t count = 0;
  ForEachFeature(
      bytes, [&](std::string_view) { return ++count > 0; },
      [&](const WireField& field) {
        if (field.number == 3) ReadScalar(field, &type);
      });
  const bool is_shared = type == 1;
  if (is_shared ? count < 1 : count != num_rows) {
    throw std::out_of_range(
        is_shared ? "the shared column '" + std::string(name) + "' has no feature"
                  : "ExampleBatch batch_size should be equal to named_feature size, while got " +
                        std::to_string(num_rows) + " vs " + std::to_string(count) +
                        " for feature_name " + std::string(name));
  }
  const bool is_sparse = column >= 0 && column < static_cast<int>(spec_.sparse_names.size());
  if (is_sparse && (*seen)[column]) {
    throw std::invalid_argument("it has two columns named '" + std::string(name) + "'");
  }
  if (is_sparse) (*seen)[column] = true;
  if (num_rows == 0) return;
  std::int64_t row = rows->num_rows;
  const auto add = [&](std::string_view feature) {
    if (column == kLineId) {
      AddLineIds(feature, row, is_shared ? num_rows : 1, rows);
    } else {
      AddFeature(column, feature, row, rows);
    }
    if (is_sparse) {
      SparseColumn& sparse = rows->sparse[column];
      sparse.ends.push_back(static_cast<std::int64_t>(sparse.values.size()));
    }
    ++row;
    return !is_shared;
  };
  ForEachFeature(bytes, add, [](const WireField&) {});
  if (is_shared && column != kLineId) RepeatFirstRow(column, num_rows, rows);
}

void ExampleParser::AddLineIds(std::string_view feature, std::int64_t row, std::int64_t num_rows,
                               ParsedRows* rows) const {
  std::string_view line_id;
  DenseSink sink(nullptr, nullptr, &line_id, 1);
  ForEachField(feature, [&](const WireField& kind) {
    if (kind.number != 6 || kind.type != WireType::kBytes) return;
    ForEachField(kind.bytes, [&](const WireField& value) {
      if (value.type == WireType::kBytes) sink.AddString(value.bytes);
    });
  });
  for (std::int64_t i = 0; i < num_rows; ++i) AddLineId(line_id, row + i, rows);
}

void ExampleParser::RepeatFirstRow(int column, std::int64_t num_rows, ParsedRows* rows) const {
  if (column < static_cast<int>(spec_.sparse_names.size())) {
    SparseColumn& sparse = rows->sparse[column];
    const auto end = static_cast<std::int64_t>(sparse.values.size());
    const std::int64_t begin = sparse.ends.size() < 2 ? 0 : sparse.ends[sparse.ends.size() - 2];
    const std::int64_t length = end - begin;
    if (length > kMostShared / num_rows) {
      throw std::invalid_argument("the shared column '" + spec_.sparse_names[column] + "' has " +
                                  std::to_string(length) + " ids for " + std::to_string(num_rows) +
                                  " rows, which are too many");
    }
    std::int64_t* next = sparse.values.Extend(length * (num_rows - 1));
    for (std::int64_t i = 1; i < num_rows; ++i) {
      next = std::copy_n(sparse.values.begin() + begin, length, next);
      sparse.ends.push_back(end + i * length);
    }
    return;
  }
  const std::size_t number = column - spec_.sparse_names.size();
  const std::int64_t width = spec_.dense[number].width;
  DenseColumn& dense = rows->dense[number];
  const auto repeat = [&](auto* values) {
    for (std::int64_t i = 1; !values->empty() && i < num_rows; ++i) {
      const auto from = values->begin() + rows->num_rows * width;
      std::copy_n(from, width, from + i * width);
    }
  };
  repeat(&dense.floats);
  repeat(&dense.integers);
  repeat(&dense.strings);
}

}  // namespace monolith::core
