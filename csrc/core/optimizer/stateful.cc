#include "core/optimizer/stateful.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "core/wire/wire.h"

namespace monolith::core {
namespace {

constexpr std::size_t kMaxParts = 5;  // Amsgrad has them.

// Members of SingleOptimizerDump by number.
constexpr const char* kMemberNames[] = {
    nullptr,        "adagrad",  "sgd",       "ftrl",       "dynamic_wd_adagrad",
    nullptr,        "adadelta", "adam",      "amsgrad",    "momentum",
    nullptr,        "rmsprop",  "rmspropv2", "group_ftrl", "batch_softmax",
    "group_adagrad"};

const char* MemberName(std::uint32_t number) {
  return number < std::size(kMemberNames) ? kMemberNames[number] : nullptr;
}

std::int64_t LoadInt64(const std::byte* from) {
  std::int64_t value = 0;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

char ByteTag(std::uint32_t number, WireType type) {
  return static_cast<char>(WireTag(number, type));
}

}  // namespace

StatefulOptimizer::StatefulOptimizer(std::uint32_t dump_member, std::size_t dim,
                                     std::vector<StateField> fields)
    : dump_member_(dump_member), dim_(dim) {
  for (const StateField& field : fields) {
    parts_.push_back({field, state_bytes_});
    state_bytes_ +=
        field.kind == StateField::Kind::kInt64 ? sizeof(std::int64_t) : field.count * sizeof(float);
  }
  std::sort(parts_.begin(), parts_.end(),
            [](const Part& a, const Part& b) { return a.dump_number < b.dump_number; });
  if (parts_.size() > kMaxParts) throw std::logic_error("Too many state fields in an optimizer.");
  const bool fixed = std::all_of(parts_.begin(), parts_.end(), [](const Part& part) {
    return part.kind == StateField::Kind::kFloats;
  });
  if (num_dumps() > 0 && fixed) {
    std::string dump;
    AppendDump(std::vector<std::byte>(state_bytes_).data(), &dump);
    fixed_dump_bytes_ = dump.size();
    fixed_dump_head_ = dump.substr(0, dump.size() - PayloadBytes(nullptr));
  }
}

void StatefulOptimizer::InitState(std::byte* state) const {
  for (const Part& part : parts_) {
    if (part.kind == StateField::Kind::kInt64) {
      std::memset(state + part.offset, 0, sizeof(std::int64_t));
    } else {
      std::fill_n(reinterpret_cast<float*>(state + part.offset), part.count, part.initial_value);
    }
  }
}

std::size_t StatefulOptimizer::PayloadBytes(const std::byte* state) const {
  std::size_t bytes = 0;
  for (const Part& part : parts_) {
    bytes += part.kind == StateField::Kind::kInt64
                 ? 1 + VarintBytes(static_cast<std::uint64_t>(LoadInt64(state + part.offset)))
                 : FloatsBytes(part.count);
  }
  return bytes;
}

std::size_t StatefulOptimizer::DumpBytes(const std::byte* state) const {
  if (num_dumps() == 0) return 0;
  const std::size_t payload = PayloadBytes(state);
  const std::size_t single = 1 + VarintBytes(payload) + payload;
  return 1 + VarintBytes(single) + single;
}

char* StatefulOptimizer::WriteDump(const std::byte* state, char* out) const {
  if (num_dumps() == 0) return out;
  const std::size_t payload = PayloadBytes(state);
  *out++ = ByteTag(1, WireType::kBytes);
  out = WriteVarint(1 + VarintBytes(payload) + payload, out);
  *out++ = ByteTag(dump_member_, WireType::kBytes);
  out = WriteVarint(payload, out);
  for (const Part& part : parts_) {
    if (part.kind == StateField::Kind::kInt64) {
      *out++ = ByteTag(part.dump_number, WireType::kVarint);
      out = WriteVarint(static_cast<std::uint64_t>(LoadInt64(state + part.offset)), out);
    } else {
      out = WriteFloats(part.dump_number, state + part.offset, part.count, out);
    }
  }
  return out;
}

bool StatefulOptimizer::ReadDump(const char* dump, std::byte* state) const {
  if (fixed_dump_bytes_ == 0) return false;
  if (std::memcmp(dump, fixed_dump_head_.data(), fixed_dump_head_.size()) != 0) return false;
  dump += fixed_dump_head_.size();
  for (const Part& part : parts_) {
    if (!ReadFloats(part.dump_number, dump, part.count, state + part.offset)) return false;
    dump += FloatsBytes(part.count);
  }
  return true;
}

std::string_view StatefulOptimizer::FindPayload(std::string_view single_optimizer_dump) const {
  std::string_view payload;
  std::uint32_t member = 0;
  WireReader reader(single_optimizer_dump);
  for (WireField field; reader.Next(&field);) {
    if (field.type != WireType::kBytes || MemberName(field.number) == nullptr) continue;
    if (member != 0) throw std::invalid_argument("The optimizer dump holds more than one state.");
    member = field.number;
    payload = field.bytes;
  }
  if (!reader.ok()) throw std::invalid_argument("The optimizer dump is malformed.");
  if (member != dump_member_) {
    throw std::invalid_argument(
        std::string("The optimizer is ") + MemberName(dump_member_) + ", but the dump holds " +
        (member == 0 ? "no known state." : MemberName(member) + std::string(" state.")));
  }
  return payload;
}

void StatefulOptimizer::ParseDump(std::string_view single_optimizer_dump, std::byte* state) const {
  if (num_dumps() == 0) throw std::invalid_argument("This optimizer has no dump to restore from.");
  const std::string_view payload = FindPayload(single_optimizer_dump);
  std::array<FloatsView, kMaxParts> floats;
  std::array<std::int64_t, kMaxParts> integers{};
  bool ok = true;
  WireReader reader(payload);
  for (WireField field; reader.Next(&field);) {
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      if (parts_[i].dump_number != field.number) continue;
      if (parts_[i].kind == StateField::Kind::kInt64) {
        ReadScalar(field, &integers[i]);
      } else {
        ok = floats[i].Add(payload, field, &reader) && ok;
      }
    }
  }
  if (!ok || !reader.ok()) {
    throw std::invalid_argument(std::string("The ") + MemberName(dump_member_) +
                                " state in the dump is malformed.");
  }
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    const Part& part = parts_[i];
    if (part.kind == StateField::Kind::kInt64) {
      std::memcpy(state + part.offset, &integers[i], sizeof(std::int64_t));
      continue;
    }
    if (floats[i].size() != part.count) {
      throw std::invalid_argument(std::string("The ") + MemberName(dump_member_) +
                                  " state in the dump has " + std::to_string(floats[i].size()) +
                                  " values of `" + part.name + "`, expected " +
                                  std::to_string(part.count) + ".");
    }
    floats[i].CopyTo(state + part.offset);
  }
}

void RequireNotNegative(const char* setting, float value) {
  if (!(value >= 0.0f)) {  // Refuses NaN, too.
    throw std::invalid_argument(std::string(setting) + " must not be negative, got " +
                                std::to_string(value) + ".");
  }
}

void RequireFraction(const char* setting, float value) {
  if (!(value >= 0.0f && value < 1.0f)) {
    throw std::invalid_argument(std::string(setting) + " must lie in [0, 1), got " +
                                std::to_string(value) + ".");
  }
}

}  // namespace monolith::core
