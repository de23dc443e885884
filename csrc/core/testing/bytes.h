// Bytes in tests: written in hexadecimal, damaged on purpose, and kept where an overrun is noticed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <string_view>

namespace monolith::core::testing {

// "09 01ff" -> "\x09\x01\xff". Spaces are ignored.
inline std::string FromHex(std::string_view hex) {
  std::string bytes;
  int digits = 0;
  int value = 0;
  for (const char c : hex) {
    if (c == ' ') continue;
    value = value * 16 + (c <= '9' ? c - '0' : c - 'a' + 10);
    if (++digits == 2) {
      bytes.push_back(static_cast<char>(value));
      digits = value = 0;
    }
  }
  return bytes;
}

inline std::string ToHex(std::string_view bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string hex;
  for (const char c : bytes) {
    hex += kDigits[static_cast<std::uint8_t>(c) >> 4];
    hex += kDigits[static_cast<std::uint8_t>(c) & 15];
  }
  return hex;
}

// Hands `use` a copy of the bytes in memory of exactly their size, so that the address sanitizer
// notices a read beyond them.
inline void InExactMemory(std::string_view bytes,
                          const std::function<void(std::string_view)>& use) {
  const std::unique_ptr<char[]> memory(new char[bytes.size()]);
  bytes.copy(memory.get(), bytes.size());
  use(std::string_view(memory.get(), bytes.size()));
}

// Hands `use` every prefix of the bytes, the bytes with every single bit flipped, and
// `random_cases` versions with several random changes (always the same ones).
inline void ForEachDamage(const std::string& bytes, int random_cases,
                          const std::function<void(std::string_view)>& use) {
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    InExactMemory(std::string_view(bytes).substr(0, length), use);
  }
  std::string damaged = bytes;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      damaged[i] = static_cast<char>(bytes[i] ^ (1 << bit));
      InExactMemory(damaged, use);
    }
    damaged[i] = bytes[i];
  }
  std::mt19937 random(20);
  for (int i = 0; i < random_cases; ++i) {
    damaged = bytes;
    const unsigned changes = 1 + random() % 4;
    for (unsigned change = 0; change < changes && !damaged.empty(); ++change) {
      const std::size_t at = random() % damaged.size();
      switch (random() % 3) {
        case 0:
          damaged[at] = static_cast<char>(random());
          break;
        case 1:
          damaged.erase(at, 1 + random() % 4);
          break;
        default:
          damaged.insert(at, 1, static_cast<char>(random()));
      }
    }
    InExactMemory(damaged, use);
  }
}

}  // namespace monolith::core::testing
