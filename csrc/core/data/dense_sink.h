// Where the numbers or strings of one row's dense feature go.
#pragma once

#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <string_view>

#include "core/wire/wire.h"

namespace monolith::core {

// The fields of a message; whoever reads them need not ask whether it was malformed.
template <typename Fn>
void ForEachField(std::string_view message, Fn&& fn) {
  WireReader reader(message);
  for (WireField field; reader.Next(&field);) fn(field);
  if (!reader.ok()) throw std::invalid_argument("its bytes are damaged");
}

// The values of one row in a dense column. More than `width` of them are counted only. Strings and
// numbers do not become each other, and floats do not become integers.
class DenseSink {
 public:
  DenseSink(float* floats, std::int64_t* integers, std::string_view* strings, std::int64_t width)
      : floats_(floats), integers_(integers), strings_(strings), width_(width) {}

  [[nodiscard]] std::int64_t count() const { return count_; }

  void AddFloat(double value) {
    if (floats_ == nullptr) throw std::invalid_argument("it holds floats");
    if (count_ < width_) floats_[count_] = static_cast<float>(value);
    ++count_;
  }
  void AddInteger(std::int64_t value) {
    if (strings_ != nullptr) throw std::invalid_argument("it holds integers");
    if (count_ < width_) {
      if (floats_ != nullptr) floats_[count_] = static_cast<float>(value);
      if (integers_ != nullptr) integers_[count_] = value;
    }
    ++count_;
  }
  void AddString(std::string_view value) {
    if (strings_ == nullptr) throw std::invalid_argument("it holds strings");
    if (count_ < width_) strings_[count_] = value;
    ++count_;
  }

  // One field of a repeated number, packed or not.
  void AddFloats(const WireField& field) { AddFixed<float, std::uint32_t>(field); }
  void AddDoubles(const WireField& field) { AddFixed<double, std::uint64_t>(field); }
  void AddIntegers(const WireField& field) {
    if (field.type == WireType::kVarint) AddInteger(static_cast<std::int64_t>(field.value));
    if (field.type != WireType::kBytes) return;
    const char* cursor = field.bytes.data();
    const char* end = cursor + field.bytes.size();
    while (cursor != end) {
      std::uint64_t value = 0;
      int shift = 0;
      for (;; shift += 7) {
        if (cursor == end || shift > 63) throw std::invalid_argument("its bytes are damaged");
        const auto byte = static_cast<std::uint8_t>(*cursor++);
        value |= std::uint64_t{byte & 0x7fu} << shift;
        if (byte < 0x80) break;
      }
      AddInteger(static_cast<std::int64_t>(value));
    }
  }

 private:
  template <typename Number, typename Bits>
  void AddFixed(const WireField& field) {
    if (field.type == WireType::kFixed32 || field.type == WireType::kFixed64) {
      const Bits bits = static_cast<Bits>(field.value);
      AddBits<Number>(reinterpret_cast<const char*>(&bits));
    }
    if (field.type != WireType::kBytes) return;
    if (field.bytes.size() % sizeof(Number) != 0) {
      throw std::invalid_argument("its bytes are damaged");
    }
    for (std::size_t at = 0; at < field.bytes.size(); at += sizeof(Number)) {
      AddBits<Number>(field.bytes.data() + at);
    }
  }
  template <typename Number>
  void AddBits(const char* bytes) {
    Number number = 0;
    std::memcpy(&number, bytes, sizeof(number));
    AddFloat(number);
  }

  float* floats_;
  std::int64_t* integers_;
  std::string_view* strings_;
  std::int64_t width_;
  std::int64_t count_ = 0;
};

}  // namespace monolith::core
