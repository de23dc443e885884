#include "core/layout/layout_config.h"

#include <algorithm>
#include <limits>
#include <map>
#include <stdexcept>
#include <utility>

#include "core/wire/wire.h"

namespace monolith::core {
namespace {

// Sizes beyond this are mistakes, and products of two of them fit into 64 bits.
constexpr std::int64_t kMostFloats = std::numeric_limits<std::int32_t>::max();

enum OutType { kConcat = 0, kStack = 1, kAddN = 2, kNone = 3 };

struct SliceMessage {
  std::string feature_name;
  std::int32_t start = 0;
  std::int32_t end = 0;
};

struct OutMessage {
  std::vector<SliceMessage> slices;
  std::int32_t out_type = 0;
  std::vector<std::vector<std::int32_t>> shapes;
};

[[noreturn]] void Fail(const std::string& message) { throw std::invalid_argument(message); }

[[noreturn]] void FailMalformed() {
  Fail("`feature_cfgs` is not a serialized FeatureConfigs message.");
}

void CheckRead(const WireReader& reader) {
  if (!reader.ok()) FailMalformed();
}

// Appends the elements of a repeated int32 field, packed or not; negative ones are long varints.
void AppendInt32s(const WireField& field, std::vector<std::int32_t>* values) {
  if (field.type == WireType::kVarint) {
    values->push_back(static_cast<std::int32_t>(field.value));
    return;
  }
  if (field.type != WireType::kBytes) return;
  const std::string_view packed = field.bytes;
  std::size_t at = 0;
  while (at < packed.size()) {
    std::uint64_t value = 0;
    int shift = 0;
    for (bool more = true; more; ++at, shift += 7) {
      if (at == packed.size() || shift > 63) FailMalformed();
      const auto byte = static_cast<std::uint8_t>(packed[at]);
      value |= static_cast<std::uint64_t>(byte & 0x7F) << shift;
      more = (byte & 0x80) != 0;
    }
    values->push_back(static_cast<std::int32_t>(value));
  }
}

// An entry of a map: a key and the bytes of a message.
std::pair<std::string, std::string_view> ReadEntry(std::string_view bytes) {
  std::pair<std::string, std::string_view> entry;
  WireReader reader(bytes);
  for (WireField field; reader.Next(&field);) {
    if (field.number == 1) ReadScalar(field, &entry.first);
    if (field.number == 2 && field.type == WireType::kBytes) entry.second = field.bytes;
  }
  CheckRead(reader);
  return entry;
}

LayoutFeature ReadFeature(std::string name, std::string_view bytes) {
  LayoutFeature feature;
  std::int32_t pooling = 0;
  std::int32_t length = 0;
  std::vector<std::int32_t> dims;
  WireReader reader(bytes);
  for (WireField field; reader.Next(&field);) {
    if (field.number == 1) ReadScalar(field, &feature.table);
    if (field.number == 2) ReadScalar(field, &pooling);
    if (field.number == 3) AppendInt32s(field, &dims);
    if (field.number == 4) ReadScalar(field, &length);
  }
  CheckRead(reader);
  feature.name = std::move(name);
  const std::string who = "Feature '" + feature.name + "' of `feature_cfgs` ";
  for (const std::int32_t dim : dims) {
    if (dim <= 0) Fail(who + "has a slice of " + std::to_string(dim) + " floats; give at least 1.");
    feature.dim += dim;
  }
  if (dims.empty()) Fail(who + "has no `slice_dims`, so its rows would have no floats.");
  if (feature.dim > kMostFloats) Fail(who + "has rows of more than 2^31 floats.");
  if (pooling == 0 || pooling == 1) {
    feature.pooling = pooling == 0 ? Pooling::kSum : Pooling::kMean;
    return feature;
  }
  if (pooling != 3) {
    Fail(who + "has pooling_type " + std::to_string(pooling) +
         "; there are SUM (0), MEAN (1) and FIRSTN (3).");
  }
  if (length <= 0) {
    Fail(who +
         "keeps the first rows apart (FIRSTN), so its max_sequence_length must be positive, got " +
         std::to_string(length) + ".");
  }
  feature.pooling = Pooling::kFirstN;
  feature.max_sequence_length = length;
  return feature;
}

SliceMessage ReadSlice(std::string_view bytes) {
  SliceMessage slice;
  WireReader reader(bytes);
  for (WireField field; reader.Next(&field);) {
    if (field.number == 1) ReadScalar(field, &slice.feature_name);
    if (field.number == 2) ReadScalar(field, &slice.start);
    if (field.number == 3) ReadScalar(field, &slice.end);
  }
  CheckRead(reader);
  return slice;
}

OutMessage ReadOut(std::string_view bytes) {
  OutMessage out;
  WireReader reader(bytes);
  for (WireField field; reader.Next(&field);) {
    if (field.number == 1 && field.type == WireType::kBytes) {
      out.slices.push_back(ReadSlice(field.bytes));
    }
    if (field.number == 2) ReadScalar(field, &out.out_type);
    if (field.number == 3 && field.type == WireType::kBytes) {
      out.shapes.emplace_back();
      WireReader shape(field.bytes);
      for (WireField dim; shape.Next(&dim);) {
        if (dim.number == 1) AppendInt32s(dim, &out.shapes.back());
      }
      CheckRead(shape);
    }
  }
  CheckRead(reader);
  return out;
}

// What stands in an output for one slice: [dim], or [length, dim] of a sequence.
std::vector<std::int64_t> DimsOf(const LayoutFeature& feature, const LayoutSlice& slice) {
  if (feature.pooling == Pooling::kFirstN) return {feature.max_sequence_length, slice.width};
  return {slice.width};
}

std::int64_t WidthOf(const std::string& who, const std::vector<std::int64_t>& dims) {
  std::int64_t width = 1;
  for (const std::int64_t dim : dims) {
    width *= dim;
    if (width > kMostFloats) Fail(who + "has more than 2^31 floats for an example.");
  }
  return width;
}

std::string ShapeText(const std::vector<std::int64_t>& dims) {
  std::string text = "[-1";
  for (const std::int64_t dim : dims) text += ", " + std::to_string(dim);
  return text + "]";
}

// Adds the outputs and slices of one layout to `config`.
class LayoutBuilder {
 public:
  LayoutBuilder(const std::string& name, const OutMessage& out, LayoutConfig* config)
      : who_("Layout '" + name + "' of `feature_cfgs` "), out_(out), config_(*config) {}

  void Build() {
    if (out_.slices.empty()) Fail(who_ + "has no slices.");
    if (out_.out_type < kConcat || out_.out_type > kNone) {
      Fail(who_ + "has out_type " + std::to_string(out_.out_type) +
           "; there are CONCAT (0), STACK (1), ADDN (2) and NONE (3).");
    }
    const std::size_t expected = out_.out_type == kNone ? out_.slices.size() : 1;
    if (out_.shapes.size() != expected) {
      Fail(who_ + "makes " + std::to_string(expected) + " tensors, but has " +
           std::to_string(out_.shapes.size()) + " shapes.");
    }
    std::vector<std::int64_t> joined;
    for (const SliceMessage& message : out_.slices) {
      const std::size_t feature = FindFeature(message);
      LayoutSlice slice;
      slice.start = message.start;
      slice.width = message.end - slice.start;
      const auto dims = DimsOf(config_.features[feature], slice);
      if (out_.out_type == kNone) {
        AddOutput(dims);
        slice.output = config_.outputs.size() - 1;
      } else {
        slice.output = config_.outputs.size();
        slice.offset = Join(dims, &joined);
      }
      config_.slices[feature].push_back(slice);
    }
    if (out_.out_type == kStack) {
      joined.insert(joined.begin(), static_cast<std::int64_t>(out_.slices.size()));
    }
    if (out_.out_type != kNone) AddOutput(joined);
  }

 private:
  std::size_t FindFeature(const SliceMessage& message) const {
    const std::size_t feature = config_.Find(message.feature_name);
    if (feature == config_.features.size()) {
      Fail(who_ + "has a slice of '" + message.feature_name + "', which is none of the features.");
    }
    const std::int64_t dim = config_.features[feature].dim;
    if (message.start < 0 || message.start >= message.end || message.end > dim) {
      Fail(who_ + "has the slice [" + std::to_string(message.start) + ", " +
           std::to_string(message.end) + ") of '" + message.feature_name + "', whose rows have " +
           std::to_string(dim) + " floats.");
    }
    if (out_.out_type == kAddN && config_.features[feature].pooling == Pooling::kFirstN) {
      Fail(who_ + "adds slices up (ADDN), which sequences (FIRSTN) like '" + message.feature_name +
           "' cannot be; concatenate them.");
    }
    return feature;
  }

  // Returns where a slice of `dims` begins, and makes `joined` what all slices so far give.
  std::int64_t Join(const std::vector<std::int64_t>& dims, std::vector<std::int64_t>* joined) {
    const std::int64_t width = WidthOf(who_, dims);
    if (joined->empty()) {
      *joined = dims;
      next_ = width;
      return 0;
    }
    const bool is_concat = out_.out_type == kConcat;
    const auto first = is_concat ? 1 : 0;  // Side by side, the first dimension may differ.
    if (joined->size() != dims.size() ||
        !std::equal(dims.begin() + first, dims.end(), joined->begin() + first)) {
      Fail(who_ + "joins slices of shapes " + ShapeText(*joined) + " and " + ShapeText(dims) +
           ", which do not fit together.");
    }
    if (is_concat) {
      joined->front() += dims.front();
      WidthOf(who_, *joined);
    }
    if (out_.out_type == kAddN) return 0;
    const std::int64_t offset = next_;
    next_ += width;
    if (next_ > kMostFloats) Fail(who_ + "has more than 2^31 floats for an example.");
    return offset;
  }

  void AddOutput(const std::vector<std::int64_t>& dims) {
    const auto& shape = out_.shapes[out_.out_type == kNone ? num_added_ : 0];
    ++num_added_;
    if (shape.size() != dims.size() + 1 || shape[0] != -1 ||
        !std::equal(dims.begin(), dims.end(), shape.begin() + 1)) {
      std::string given;
      for (const std::int32_t dim : shape) {
        given += (given.empty() ? "" : ", ") + std::to_string(dim);
      }
      Fail(who_ + "has the shape [" + given + "], but its slices make " + ShapeText(dims) + ".");
    }
    config_.outputs.push_back({dims, WidthOf(who_, dims)});
  }

  const std::string who_;
  const OutMessage& out_;
  LayoutConfig& config_;
  std::int64_t next_ = 0;
  std::size_t num_added_ = 0;
};

}  // namespace

std::size_t LayoutConfig::Find(std::string_view name) const {
  const auto found = std::lower_bound(
      features.begin(), features.end(), name,
      [](const LayoutFeature& feature, std::string_view other) { return feature.name < other; });
  if (found == features.end() || found->name != name) return features.size();
  return static_cast<std::size_t>(found - features.begin());
}

LayoutConfig ParseLayoutConfig(std::string_view serialized) {
  // Of equal keys the last counts, as in any protobuf map.
  std::map<std::string, std::string_view> features;
  std::map<std::string, std::string_view> outs;
  WireReader reader(serialized);
  for (WireField field; reader.Next(&field);) {
    if (field.type != WireType::kBytes || field.number > 2) continue;
    const auto entry = ReadEntry(field.bytes);
    (field.number == 1 ? features : outs)[entry.first] = entry.second;
  }
  CheckRead(reader);
  if (features.empty()) Fail("`feature_cfgs` has no features.");
  LayoutConfig config;
  for (const auto& [name, bytes] : features) {
    config.features.push_back(ReadFeature(name, bytes));
    config.tables.push_back(config.features.back().table);
  }
  std::sort(config.tables.begin(), config.tables.end());
  config.tables.erase(std::unique(config.tables.begin(), config.tables.end()), config.tables.end());
  std::vector<std::size_t> in_table(config.tables.size(), 0);
  for (LayoutFeature& feature : config.features) {
    feature.table_index = static_cast<std::size_t>(
        std::lower_bound(config.tables.begin(), config.tables.end(), feature.table) -
        config.tables.begin());
    feature.index_in_table = in_table[feature.table_index]++;
  }
  config.slices.resize(config.features.size());
  for (const auto& [name, bytes] : outs) {
    const OutMessage out = ReadOut(bytes);
    LayoutBuilder(name, out, &config).Build();
  }
  return config;
}

}  // namespace monolith::core
