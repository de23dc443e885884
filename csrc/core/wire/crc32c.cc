#include "core/wire/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__) && defined(__GNUC__)
#include <nmmintrin.h>
#define MONOLITH_CRC_INSTRUCTION 1
#endif

namespace monolith::core {
namespace {

constexpr std::uint32_t kPolynomial = 0x82F63B78u;  // Castagnoli, bits reversed.
constexpr std::size_t kWord = sizeof(std::uint64_t);

// Table k holds the checksums of a byte followed by k zero bytes, so that a word is eight lookups
// that do not wait for each other.
using Tables = std::array<std::array<std::uint32_t, 256>, kWord>;

constexpr Tables MakeTables() {
  Tables tables{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ ((crc & 1) != 0 ? kPolynomial : 0);
    tables[0][byte] = crc;
  }
  for (std::size_t k = 1; k < kWord; ++k) {
    for (std::uint32_t byte = 0; byte < 256; ++byte) {
      const std::uint32_t before = tables[k - 1][byte];
      tables[k][byte] = before >> 8 ^ tables[0][before & 0xFF];
    }
  }
  return tables;
}

constexpr Tables kTables = MakeTables();

std::uint64_t LoadWord(const char* from) {
  std::uint64_t word = 0;
  std::memcpy(&word, from, kWord);
  return word;
}

#if defined(MONOLITH_CRC_INSTRUCTION)
__attribute__((target("sse4.2"))) std::uint32_t ByInstruction(std::string_view data) {
  std::uint64_t crc = 0xFFFFFFFFu;
  const char* at = data.data();
  const char* const end = at + data.size();
  for (; end - at >= static_cast<std::ptrdiff_t>(kWord); at += kWord) {
    crc = _mm_crc32_u64(crc, LoadWord(at));
  }
  auto rest = static_cast<std::uint32_t>(crc);
  for (; at != end; ++at) rest = _mm_crc32_u8(rest, static_cast<std::uint8_t>(*at));
  return ~rest;
}
#endif

}  // namespace

std::uint32_t Crc32cByTables(std::string_view data) {
  std::uint32_t crc = 0xFFFFFFFFu;
  const char* at = data.data();
  const char* const end = at + data.size();
  for (; end - at >= static_cast<std::ptrdiff_t>(kWord); at += kWord) {
    const std::uint64_t word = LoadWord(at) ^ crc;
    crc = 0;
    for (std::size_t i = 0; i < kWord; ++i) {
      crc ^= kTables[kWord - 1 - i][word >> (8 * i) & 0xFF];
    }
  }
  for (; at != end; ++at)
    crc = crc >> 8 ^ kTables[0][(crc ^ static_cast<std::uint8_t>(*at)) & 0xFF];
  return ~crc;
}

std::uint32_t Crc32c(std::string_view data) {
#if defined(MONOLITH_CRC_INSTRUCTION)
  static const bool has_instruction = __builtin_cpu_supports("sse4.2") != 0;
  if (has_instruction) return ByInstruction(data);
#endif
  return Crc32cByTables(data);
}

}  // namespace monolith::core
