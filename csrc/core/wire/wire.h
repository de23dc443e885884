// The protobuf wire format, as much of it as our few messages need.
//
// Generated C++ code would tie the core to one version of the protobuf library; the messages here
// are few, old and stable. Reading never leaves the given bytes and never allocates.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace monolith::core {

enum class WireType : std::uint8_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

// One field of a message. `value` holds what stands in a varint or fixed field, `bytes` what stands
// in a length-delimited one.
struct WireField {
  std::uint32_t number = 0;
  WireType type = WireType::kVarint;
  std::uint64_t value = 0;
  std::string_view bytes;
};

// Walks over the fields of one message:
//
//   WireReader reader(message);
//   for (WireField field; reader.Next(&field);) { ... }
//   if (!reader.ok()) { the message is malformed }
//
// A caller ignores the fields it does not know, or whose type is not the expected one, as protobuf
// does. Groups, which none of our messages has, are checked and skipped.
class WireReader {
 public:
  explicit WireReader(std::string_view message)
      : cursor_(message.data()), end_(message.data() + message.size()) {}

  // Returns false at the end of the message and at the first malformed byte.
  [[nodiscard]] bool Next(WireField* field);

  // False once Next has met something malformed.
  [[nodiscard]] bool ok() const { return ok_; }
  // The first byte that Next has not consumed.
  [[nodiscard]] const char* cursor() const { return cursor_; }

  // Goes on reading at `cursor`, which lies between cursor() and the end of the message.
  void SkipTo(const char* cursor) { cursor_ = cursor; }

 private:
  bool ReadVarint(std::uint64_t* value);
  bool ReadLongVarint(std::uint64_t* value);
  bool ReadPayload(WireField* field);
  bool SkipGroup(std::uint32_t number, int depth);
  bool Fail();

  static constexpr std::uint64_t kMaxFieldNumber = (std::uint64_t{1} << 29) - 1;
  static constexpr std::uint32_t kStartGroup = 3;
  static constexpr std::uint32_t kEndGroup = 4;

  const char* cursor_;
  const char* end_;
  bool ok_ = true;
};

// Store the field in `target` if it has the wire type of `target`'s C++ type; otherwise leave
// `target` alone and return false. Integers keep their low bits, as protobuf does.
bool ReadScalar(const WireField& field, bool* target);
bool ReadScalar(const WireField& field, std::int32_t* target);
bool ReadScalar(const WireField& field, std::uint32_t* target);
bool ReadScalar(const WireField& field, std::int64_t* target);
bool ReadScalar(const WireField& field, std::uint64_t* target);
bool ReadScalar(const WireField& field, float* target);
bool ReadScalar(const WireField& field, double* target);
bool ReadScalar(const WireField& field, std::string* target);

// Appends the elements of a repeated uint32 field, packed or one of many. Returns false if packed
// elements are malformed; a field of another type is ignored.
[[nodiscard]] bool AppendUint32s(const WireField& field, std::vector<std::uint32_t>* values);

// One repeated float field of a message, still in the message's bytes: packed, one by one as proto2
// writes it, or any mixture.
class FloatsView {
 public:
  FloatsView() = default;

  [[nodiscard]] std::size_t size() const { return size_; }
  // Copies the size() floats. `out` need not be aligned.
  void CopyTo(void* out) const;

  // Takes over `field`, which `reader` of `message` has just returned, together with the run of
  // equal fields behind it. Returns false if packed floats are not a multiple of 4 bytes long; a
  // field of another type is ignored.
  [[nodiscard]] bool Add(std::string_view message, const WireField& field, WireReader* reader);

 private:
  std::string_view message_;
  const char* first_ = nullptr;  // The first float, if all of them lie `stride_` apart.
  std::size_t size_ = 0;
  std::uint32_t number_ = 0;
  std::uint32_t stride_ = 0;  // 0: scattered over the message.
};

// Writing. The functions that take `out` write without a bound: the caller has made room, with the
// sizes from the functions beside them. They return the end of what they wrote.
[[nodiscard]] constexpr std::uint32_t WireTag(std::uint32_t number, WireType type) {
  return number << 3 | static_cast<std::uint32_t>(type);
}
[[nodiscard]] constexpr std::size_t VarintBytes(std::uint64_t value) {
  std::size_t bytes = 1;
  for (; value >= 0x80; value >>= 7) ++bytes;
  return bytes;
}
char* WriteVarint(std::uint64_t value, char* out);
char* WriteFixed32(std::uint32_t value, char* out);
char* WriteFixed64(std::uint64_t value, char* out);
// The repeated field `number`, below 16, of floats. More than one are packed: readers of proto2
// take that wherever they take one by one, it is a fifth shorter, and copied as a whole.
[[nodiscard]] constexpr std::size_t FloatsBytes(std::size_t count) {
  return 1 + (count == 1 ? 0 : VarintBytes(count * sizeof(float))) + count * sizeof(float);
}
char* WriteFloats(std::uint32_t number, const void* values, std::size_t count, char* out);
// Reads what WriteFloats wrote, FloatsBytes(count). Returns false, with `values` undefined, if it
// is another field or another number of floats.
[[nodiscard]] bool ReadFloats(std::uint32_t number, const char* from, std::size_t count,
                              void* values);

// The reader's inner part, inline: a restore reads tens of millions of small records.

inline bool WireReader::ReadVarint(std::uint64_t* value) {
  if (cursor_ != end_ && static_cast<std::uint8_t>(*cursor_) < 0x80) {
    *value = static_cast<std::uint8_t>(*cursor_++);
    return true;
  }
  return ReadLongVarint(value);
}

inline bool WireReader::ReadPayload(WireField* field) {
  switch (field->type) {
    case WireType::kVarint:
      return ReadVarint(&field->value);
    case WireType::kFixed64:
      if (end_ - cursor_ < 8) return Fail();
      std::memcpy(&field->value, cursor_, 8);
      cursor_ += 8;
      return true;
    case WireType::kBytes: {
      std::uint64_t length = 0;
      if (!ReadVarint(&length)) return false;
      if (length > static_cast<std::uint64_t>(end_ - cursor_)) return Fail();
      field->bytes = std::string_view(cursor_, length);
      cursor_ += length;
      return true;
    }
    case WireType::kFixed32: {
      if (end_ - cursor_ < 4) return Fail();
      std::uint32_t value = 0;
      std::memcpy(&value, cursor_, 4);
      field->value = value;
      cursor_ += 4;
      return true;
    }
  }
  return Fail();  // Wire types 6 and 7 do not exist.
}

inline bool WireReader::Next(WireField* field) {
  while (ok_ && cursor_ != end_) {
    std::uint64_t tag = 0;
    if (!ReadVarint(&tag)) return false;
    if (tag >> 3 == 0 || tag >> 3 > kMaxFieldNumber) return Fail();
    field->number = static_cast<std::uint32_t>(tag >> 3);
    const auto type = static_cast<std::uint32_t>(tag & 7);
    if (type == kStartGroup) {
      if (!SkipGroup(field->number, 0)) return false;
      continue;
    }
    if (type == kEndGroup) return Fail();
    field->type = static_cast<WireType>(type);
    return ReadPayload(field);
  }
  return false;
}

inline bool WireReader::Fail() {
  ok_ = false;
  return false;
}

// Appends whole fields to a message.
class WireWriter {
 public:
  explicit WireWriter(std::string* message) : message_(message) {}

  void Varint(std::uint32_t number, std::uint64_t value);
  void Fixed32(std::uint32_t number, std::uint32_t value);
  void Fixed64(std::uint32_t number, std::uint64_t value);
  void Float(std::uint32_t number, float value);
  void Double(std::uint32_t number, double value);
  void Bytes(std::uint32_t number, std::string_view value);

 private:
  std::string* message_;
};

}  // namespace monolith::core
