#include "core/layout/serialized_ids.h"

#include <cstring>
#include <stdexcept>
#include <string>

#include "core/wire/wire.h"

namespace monolith::core {
namespace {

constexpr int kOldSlotShift = 54;
constexpr std::size_t kNumOldSlots = std::size_t{1} << 10;
constexpr std::uint64_t kSignature = (std::uint64_t{1} << 48) - 1;

// Fields of monolith.io.proto.Feature.
constexpr std::uint32_t kOldIds = 1;
constexpr std::uint32_t kIds = 2;

[[noreturn]] void Fail(const std::string& message) { throw std::invalid_argument(message); }

void CheckRead(const WireReader& reader, const char* what) {
  if (!reader.ok()) Fail(std::string("The input is not a serialized ") + what + " message.");
}

std::int64_t ToNewId(std::uint64_t id) {
  return static_cast<std::int64_t>((id & kSignature) | (id >> kOldSlotShift) << 48);
}

// Calls `fn` with each element of a repeated fixed64 field, packed or not.
template <typename Fn>
void ForEachFixed64(const WireField& field, const char* what, const Fn& fn) {
  if (field.type == WireType::kFixed64) fn(field.value);
  if (field.type != WireType::kBytes) return;
  if (field.bytes.size() % 8 != 0) {
    Fail(std::string("The input is not a serialized ") + what + " message.");
  }
  for (std::size_t at = 0; at < field.bytes.size(); at += 8) {
    std::uint64_t value = 0;
    std::memcpy(&value, field.bytes.data() + at, 8);
    fn(value);
  }
}

// Appends the ids of a monolith.io.proto.Feature.
void AppendIds(std::string_view message, const std::string& name, std::vector<std::int64_t>* ids) {
  WireReader reader(message);
  for (WireField field; reader.Next(&field);) {
    if (field.number != kOldIds && field.number != kIds) {
      Fail("Feature '" + name +
           "' has embeddings, but the input has something else than a list of "
           "ids for it.");
    }
    if (field.type != WireType::kBytes) continue;
    const bool is_old = field.number == kOldIds;
    WireReader list(field.bytes);
    for (WireField value; list.Next(&value);) {
      if (value.number != 1) continue;
      ForEachFixed64(value, "FidList", [&](std::uint64_t id) {
        ids->push_back(is_old ? ToNewId(id) : static_cast<std::int64_t>(id));
      });
    }
    CheckRead(list, "FidList");
  }
  CheckRead(reader, "Feature");
}

// The number of `slot_<n>` and `fc_slot_<n>`, or kNumOldSlots.
std::size_t SlotIn(std::string_view name) {
  if (name.substr(0, 3) == "fc_") name.remove_prefix(3);
  if (name.substr(0, 5) != "slot_") return kNumOldSlots;
  name.remove_prefix(5);
  if (name.empty() || name.size() > 4) return kNumOldSlots;
  std::size_t slot = 0;
  for (const char digit : name) {
    if (digit < '0' || digit > '9') return kNumOldSlots;
    slot = slot * 10 + static_cast<std::size_t>(digit - '0');
  }
  return slot;
}

}  // namespace

ExampleFormat ParseExampleFormat(std::string_view name) {
  if (name == "example") return ExampleFormat::kExample;
  if (name == "example_batch" || name == "examplebatch") return ExampleFormat::kExampleBatch;
  if (name == "instance") return ExampleFormat::kInstance;
  throw std::invalid_argument("A batch is of 'example', 'example_batch' or 'instance', got '" +
                              std::string(name) + "'.");
}

SerializedIds::SerializedIds(const LayoutConfig& config, ExampleFormat format,
                             const std::vector<std::string_view>& messages)
    : config_(config), features_(config.features.size()) {
  if (format == ExampleFormat::kExampleBatch) {
    if (messages.size() != 1) {
      Fail("A batch is one serialized ExampleBatch, got " + std::to_string(messages.size()) + ".");
    }
    ReadBatch(messages[0]);
    return;
  }
  for (Feature& feature : features_) feature.splits.push_back(0);
  feature_of_slot_.assign(kNumOldSlots, features_.size());
  for (std::size_t f = 0; f < features_.size(); ++f) {
    const std::size_t slot = SlotIn(config.features[f].name);
    if (slot < kNumOldSlots) feature_of_slot_[slot] = f;
  }
  for (const std::string_view message : messages) {
    if (format == ExampleFormat::kExample) {
      ReadExample(message);
    } else {
      ReadInstance(message);
    }
    EndExample();
  }
  batch_size_ = static_cast<std::int64_t>(messages.size());
}

std::vector<FeatureIds> SerializedIds::features() const {
  std::vector<FeatureIds> result;
  result.reserve(features_.size());
  for (const Feature& feature : features_) {
    FeatureIds ids;
    ids.ids = {feature.ids.data(), feature.ids.size()};
    ids.splits = {feature.splits.data(), feature.splits.size()};
    ids.is_shared = feature.is_shared;
    result.push_back(ids);
  }
  return result;
}

void SerializedIds::ReadBatch(std::string_view message) {
  std::int32_t batch_size = 0;
  WireReader reader(message);
  for (WireField field; reader.Next(&field);) {
    if (field.number == 1 && field.type == WireType::kBytes) ReadBatchFeature(field.bytes);
    if (field.number == 3) ReadScalar(field, &batch_size);
  }
  CheckRead(reader, "ExampleBatch");
  if (batch_size < 0) {
    Fail("An ExampleBatch has the batch_size " + std::to_string(batch_size) + ".");
  }
  batch_size_ = batch_size;
}

void SerializedIds::ReadBatchFeature(std::string_view message) {
  std::string name;
  std::int32_t type = 0;
  std::vector<std::string_view> lists;
  WireReader reader(message);
  for (WireField field; reader.Next(&field);) {
    if (field.number == 1) ReadScalar(field, &name);
    if (field.number == 2 && field.type == WireType::kBytes) lists.push_back(field.bytes);
    if (field.number == 3) ReadScalar(field, &type);
  }
  CheckRead(reader, "NamedFeatureList");
  const std::size_t f = config_.Find(name);
  if (f == features_.size()) return;
  Feature& feature = features_[f];
  if (!feature.splits.empty()) Fail("An ExampleBatch has feature '" + name + "' twice.");
  feature.is_shared = type == 1;
  if (feature.is_shared) {
    if (lists.empty()) Fail("Feature '" + name + "' is shared by a batch, but has no ids.");
    lists.resize(1);
  }
  feature.splits.push_back(0);
  for (const std::string_view list : lists) {
    AppendIds(list, name, &feature.ids);
    feature.splits.push_back(static_cast<std::int64_t>(feature.ids.size()));
  }
}

void SerializedIds::ReadExample(std::string_view message) {
  WireReader reader(message);
  for (WireField field; reader.Next(&field);) {
    if (field.number != 1 || field.type != WireType::kBytes) continue;
    std::string name;
    std::string_view feature;
    WireReader named(field.bytes);
    for (WireField part; named.Next(&part);) {
      if (part.number == 1) ReadScalar(part, &name);
      if (part.number == 2 && part.type == WireType::kBytes) feature = part.bytes;
    }
    CheckRead(named, "NamedFeature");
    const std::size_t f = config_.Find(name);
    if (f != features_.size()) AppendIds(feature, name, &features_[f].ids);
  }
  CheckRead(reader, "Example");
}

void SerializedIds::ReadInstance(std::string_view message) {
  WireReader reader(message);
  for (WireField field; reader.Next(&field);) {
    if (field.number == 1) {
      ForEachFixed64(field, "Instance", [&](std::uint64_t id) {
        const std::size_t f = feature_of_slot_[id >> kOldSlotShift];
        if (f != features_.size()) features_[f].ids.push_back(static_cast<std::int64_t>(id));
      });
    }
    if (field.number != 9 || field.type != WireType::kBytes) continue;
    std::string name;
    std::vector<std::int64_t> ids;
    WireReader feature(field.bytes);
    for (WireField part; feature.Next(&part);) {
      if (part.number == 1) ReadScalar(part, &name);
      if (part.number == 2) {
        ForEachFixed64(part, "Instance",
                       [&](std::uint64_t id) { ids.push_back(static_cast<std::int64_t>(id)); });
      }
    }
    CheckRead(feature, "Instance");
    const std::size_t f = config_.Find(name);
    if (f != features_.size()) {
      features_[f].ids.insert(features_[f].ids.end(), ids.begin(), ids.end());
    }
  }
  CheckRead(reader, "Instance");
}

void SerializedIds::EndExample() {
  for (Feature& feature : features_) {
    feature.splits.push_back(static_cast<std::int64_t>(feature.ids.size()));
  }
}

}  // namespace monolith::core
