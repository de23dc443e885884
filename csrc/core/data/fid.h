// Feature ids that carry the number of their slot, in two versions.
//
//   v1  slot in the 10 highest bits, signature in the 54 others
//   v2  bit 63 is 0, slot in the next 15 bits, signature in the 48 others
//
// Tensors carry them as int64, with the same bits.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace monolith::core {

// One version: where the slot begins, and how many slots there are.
template <int kVersion, int kSlotShift, std::uint64_t kNumSlots>
class Fid {
 public:
  static constexpr std::uint64_t kSignatureMask = (std::uint64_t{1} << kSlotShift) - 1;

  constexpr explicit Fid(std::uint64_t value) : value_(value) {}
  // Throws std::invalid_argument if there is no such slot. Only the low bits of `signature` count.
  Fid(std::uint64_t slot, std::uint64_t signature)
      : value_(slot << kSlotShift | (signature & kSignatureMask)) {
    if (slot >= kNumSlots) {
      throw std::invalid_argument("slot should be less than " + std::to_string(kNumSlots) +
                                  ", while got " + std::to_string(slot));
    }
  }

  [[nodiscard]] constexpr std::uint64_t value() const { return value_; }
  [[nodiscard]] constexpr std::uint64_t slot() const {
    return value_ >> kSlotShift & (kNumSlots - 1);
  }
  [[nodiscard]] constexpr std::uint64_t signature() const { return value_ & kSignatureMask; }
  [[nodiscard]] std::string DebugString() const {
    return std::to_string(value_) + "(v" + std::to_string(kVersion) +
           "|slot=" + std::to_string(slot()) + "|sig=" + std::to_string(signature()) + ")";
  }

 private:
  std::uint64_t value_;
};

using FidV1 = Fid<1, 54, 1024>;
using FidV2 = Fid<2, 48, 32768>;

// Keeps the slot and the low 48 bits of the signature.
[[nodiscard]] constexpr std::uint64_t ConvertV1ToV2(std::uint64_t fid) {
  return (fid & FidV2::kSignatureMask) | (fid >> 54 << 48);
}

}  // namespace monolith::core
