#include "core/wire/wire.h"

#include <cstring>

namespace monolith::core {
namespace {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
              "numbers are copied between memory and the wire, which is little endian");

constexpr int kMaxGroupDepth = 64;
// Returns the end of the varint at `cursor`, or nullptr if it has no end before `end` or more than
// 64 bits.
const char* ParseVarint(const char* cursor, const char* end, std::uint64_t* value) {
  std::uint64_t result = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    if (cursor == end) return nullptr;
    const auto byte = static_cast<std::uint8_t>(*cursor++);
    if (shift == 63 && byte > 1) return nullptr;
    result |= std::uint64_t{byte & 0x7Fu} << shift;
    if (byte < 0x80) {
      *value = result;
      return cursor;
    }
  }
  return nullptr;
}

}  // namespace

bool WireReader::ReadLongVarint(std::uint64_t* value) {
  const char* next = ParseVarint(cursor_, end_, value);
  if (next == nullptr) return Fail();
  cursor_ = next;
  return true;
}

bool WireReader::SkipGroup(std::uint32_t number, int depth) {
  if (depth > kMaxGroupDepth) return Fail();
  while (true) {
    std::uint64_t tag = 0;
    if (!ReadVarint(&tag)) return false;
    if (tag >> 3 == 0 || tag >> 3 > kMaxFieldNumber) return Fail();
    const auto inner = static_cast<std::uint32_t>(tag >> 3);
    const auto type = static_cast<std::uint32_t>(tag & 7);
    if (type == kEndGroup) return inner == number ? true : Fail();
    if (type == kStartGroup) {
      if (!SkipGroup(inner, depth + 1)) return false;
      continue;
    }
    WireField ignored;
    ignored.type = static_cast<WireType>(type);
    if (!ReadPayload(&ignored)) return false;
  }
}

namespace {

template <typename Integer>
bool ReadVarintField(const WireField& field, Integer* target) {
  if (field.type != WireType::kVarint) return false;
  *target = static_cast<Integer>(field.value);
  return true;
}

}  // namespace

bool ReadScalar(const WireField& field, bool* target) {
  if (field.type != WireType::kVarint) return false;
  *target = field.value != 0;
  return true;
}

bool ReadScalar(const WireField& field, std::int32_t* target) {
  return ReadVarintField(field, target);
}
bool ReadScalar(const WireField& field, std::uint32_t* target) {
  return ReadVarintField(field, target);
}
bool ReadScalar(const WireField& field, std::int64_t* target) {
  return ReadVarintField(field, target);
}
bool ReadScalar(const WireField& field, std::uint64_t* target) {
  return ReadVarintField(field, target);
}

bool ReadScalar(const WireField& field, float* target) {
  if (field.type != WireType::kFixed32) return false;
  std::memcpy(target, &field.value, sizeof(float));
  return true;
}

bool ReadScalar(const WireField& field, double* target) {
  if (field.type != WireType::kFixed64) return false;
  std::memcpy(target, &field.value, sizeof(double));
  return true;
}

bool ReadScalar(const WireField& field, std::string* target) {
  if (field.type != WireType::kBytes) return false;
  target->assign(field.bytes);
  return true;
}

bool AppendUint32s(const WireField& field, std::vector<std::uint32_t>* values) {
  std::uint64_t value = 0;
  if (field.type == WireType::kVarint) {
    values->push_back(static_cast<std::uint32_t>(field.value));
  } else if (field.type == WireType::kBytes) {
    const char* end = field.bytes.data() + field.bytes.size();
    for (const char* cursor = field.bytes.data(); cursor != end;) {
      cursor = ParseVarint(cursor, end, &value);
      if (cursor == nullptr) return false;
      values->push_back(static_cast<std::uint32_t>(value));
    }
  }
  return true;
}

bool FloatsView::Add(std::string_view message, const WireField& field, WireReader* reader) {
  const char* first = nullptr;
  std::size_t count = 0;
  std::uint32_t stride = 0;
  if (field.type == WireType::kFixed32) {
    first = reader->cursor() - sizeof(float);
    count = 1;
    stride = 1 + sizeof(float);
    if (field.number < 16) {  // Then the tag is one byte, and the fields lie `stride` apart.
      const auto tag = static_cast<char>(WireTag(field.number, WireType::kFixed32));
      const char* const next = reader->cursor();
      const auto most = static_cast<std::size_t>(message.data() + message.size() - next) / stride;
      std::size_t more = 0;
      while (more < most && next[more * stride] == tag) ++more;
      count += more;
      reader->SkipTo(next + more * stride);
    }
  } else if (field.type == WireType::kBytes) {
    if (field.bytes.size() % sizeof(float) != 0) return false;
    first = field.bytes.data();
    count = field.bytes.size() / sizeof(float);
    stride = sizeof(float);
  }
  if (count == 0) return true;
  if (size_ == 0) {
    message_ = message;
    first_ = first;
    number_ = field.number;
    stride_ = stride;
  } else {
    stride_ = 0;
  }
  size_ += count;
  return true;
}

void FloatsView::CopyTo(void* out) const {
  auto* to = static_cast<char*>(out);
  if (size_ == 0) return;
  if (stride_ == sizeof(float)) {
    std::memcpy(to, first_, size_ * sizeof(float));
    return;
  }
  if (stride_ != 0) {
    const char* const first = first_;  // Bytes written to `to` might be members, for all the
    const std::size_t size = size_;    // compiler knows: it would load them again and again.
    for (std::size_t i = 0; i < size; ++i) {
      std::memcpy(to + i * sizeof(float), first + i * (1 + sizeof(float)), sizeof(float));
    }
    return;
  }
  WireReader reader(message_);
  for (WireField field; reader.Next(&field);) {
    if (field.number != number_) continue;
    if (field.type == WireType::kFixed32) {
      std::memcpy(to, &field.value, sizeof(float));
      to += sizeof(float);
    } else if (field.type == WireType::kBytes) {
      std::memcpy(to, field.bytes.data(), field.bytes.size());
      to += field.bytes.size();
    }
  }
}

namespace {

// Enough for a tag and a varint.
constexpr std::size_t kMaxFieldHead = 20;

}  // namespace

char* WriteVarint(std::uint64_t value, char* out) {
  for (; value >= 0x80; value >>= 7) *out++ = static_cast<char>(value | 0x80);
  *out++ = static_cast<char>(value);
  return out;
}

char* WriteFixed32(std::uint32_t value, char* out) {
  std::memcpy(out, &value, sizeof(value));
  return out + sizeof(value);
}

char* WriteFixed64(std::uint64_t value, char* out) {
  std::memcpy(out, &value, sizeof(value));
  return out + sizeof(value);
}

namespace {

char* WriteHeadOfFloats(std::uint32_t number, std::size_t count, char* out) {
  const WireType type = count == 1 ? WireType::kFixed32 : WireType::kBytes;
  *out++ = static_cast<char>(WireTag(number, type));
  return count == 1 ? out : WriteVarint(count * sizeof(float), out);
}

}  // namespace

char* WriteFloats(std::uint32_t number, const void* values, std::size_t count, char* out) {
  out = WriteHeadOfFloats(number, count, out);
  std::memcpy(out, values, count * sizeof(float));
  return out + count * sizeof(float);
}

bool ReadFloats(std::uint32_t number, const char* from, std::size_t count, void* values) {
  char head[kMaxFieldHead];
  const auto bytes = static_cast<std::size_t>(WriteHeadOfFloats(number, count, head) - head);
  if (std::memcmp(from, head, bytes) != 0) return false;
  std::memcpy(values, from + bytes, count * sizeof(float));
  return true;
}

void WireWriter::Varint(std::uint32_t number, std::uint64_t value) {
  char buffer[kMaxFieldHead];
  char* end = WriteVarint(WireTag(number, WireType::kVarint), buffer);
  end = WriteVarint(value, end);
  message_->append(buffer, end);
}

void WireWriter::Fixed32(std::uint32_t number, std::uint32_t value) {
  char buffer[kMaxFieldHead];
  char* end = WriteVarint(WireTag(number, WireType::kFixed32), buffer);
  end = WriteFixed32(value, end);
  message_->append(buffer, end);
}

void WireWriter::Fixed64(std::uint32_t number, std::uint64_t value) {
  char buffer[kMaxFieldHead];
  char* end = WriteVarint(WireTag(number, WireType::kFixed64), buffer);
  end = WriteFixed64(value, end);
  message_->append(buffer, end);
}

void WireWriter::Float(std::uint32_t number, float value) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  Fixed32(number, bits);
}

void WireWriter::Double(std::uint32_t number, double value) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  Fixed64(number, bits);
}

void WireWriter::Bytes(std::uint32_t number, std::string_view value) {
  char buffer[kMaxFieldHead];
  char* end = WriteVarint(WireTag(number, WireType::kBytes), buffer);
  end = WriteVarint(value.size(), end);
  message_->append(buffer, end);
  message_->append(value);
}

}  // namespace monolith::core
