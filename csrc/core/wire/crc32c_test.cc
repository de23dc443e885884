#include "core/wire/crc32c.h"

#include <gtest/gtest.h>

#include <string>

namespace monolith::core {
namespace {

// The definition: one bit after another.
std::uint32_t BitByBit(const std::string& data) {
  std::uint32_t crc = 0xFFFFFFFFu;
  for (const char c : data) {
    crc ^= static_cast<std::uint8_t>(c);
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ ((crc & 1) != 0 ? 0x82F63B78u : 0);
  }
  return ~crc;
}

// RFC 3720, B.4, and the check value of the algorithm's catalogue entry.
TEST(Crc32c, KnownValues) {
  std::string rising(32, '\0');
  for (int i = 0; i < 32; ++i) rising[i] = static_cast<char>(i);
  for (const auto crc : {Crc32c, Crc32cByTables}) {
    EXPECT_EQ(crc(""), 0u);
    EXPECT_EQ(crc("123456789"), 0xE3069283u);
    EXPECT_EQ(crc(std::string(32, '\0')), 0x8A9136AAu);
    EXPECT_EQ(crc(std::string(32, '\xFF')), 0x62A8AB43u);
    EXPECT_EQ(crc(rising), 0x46DD794Eu);
  }
}

TEST(Crc32c, EveryLengthAndAlignment) {
  std::string data;
  for (int i = 0; i < 300; ++i) data.push_back(static_cast<char>(i * i * 31 + 7));
  for (std::size_t start = 0; start < 8; ++start) {
    for (std::size_t length = 0; start + length <= data.size(); ++length) {
      const std::string part = data.substr(start, length);
      const std::uint32_t expected = BitByBit(part);
      const std::string_view in_place(data.data() + start, length);
      ASSERT_EQ(Crc32c(in_place), expected) << start << " " << length;
      ASSERT_EQ(Crc32cByTables(in_place), expected) << start << " " << length;
    }
  }
}

}  // namespace
}  // namespace monolith::core
