#include "core/wire/record_frame.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/testing/bytes.h"
#include "core/wire/crc32c.h"

namespace monolith::core {
namespace {

using testing::ToHex;

std::string Framed(const std::string& record) {
  std::string file;
  AppendRecord(record, &file);
  return file;
}

// Written by tf.io.TFRecordWriter.
TEST(RecordFrame, BytesAsTensorFlowWritesThem) {
  EXPECT_EQ(ToHex(Framed("abc")), "0300000000000000b099490e6162636e57f121");
  EXPECT_EQ(ToHex(Framed("")), "000000000000000029039807d8ea82a2");
}

TEST(RecordFrame, RecordsOneAfterAnother) {
  const std::vector<std::string> records = {"", "a", std::string(1000, 'x'), std::string(3, '\0')};
  std::string file;
  for (const std::string& record : records) AppendRecord(record, &file);
  std::string_view rest = file;
  for (const std::string& expected : records) {
    std::string_view record;
    std::uint64_t bytes = 0;
    ASSERT_EQ(ReadRecord(rest, &record, &bytes), RecordRead::kOk);
    EXPECT_EQ(record, expected);
    EXPECT_EQ(bytes, expected.size() + kRecordHeadBytes + kRecordFootBytes);
    rest.remove_prefix(bytes);
  }
  EXPECT_TRUE(rest.empty());
}

TEST(RecordFrame, EveryTruncationIsIncomplete) {
  const std::string file = Framed("some bytes");
  for (std::size_t length = 0; length < file.size(); ++length) {
    std::string_view record;
    std::uint64_t bytes = 0;
    EXPECT_EQ(ReadRecord({file.data(), length}, &record, &bytes), RecordRead::kIncomplete);
    EXPECT_EQ(bytes, length < kRecordHeadBytes ? kRecordHeadBytes : file.size());
  }
}

TEST(RecordFrame, EveryFlippedBitIsNoticed) {
  const std::string file = Framed("some bytes");
  for (std::size_t bit = 0; bit < 8 * file.size(); ++bit) {
    std::string damaged = file;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ 1 << bit % 8);
    std::string_view record;
    std::uint64_t bytes = 0;
    EXPECT_EQ(ReadRecord(damaged, &record, &bytes), RecordRead::kCorrupt) << "bit " << bit;
  }
}

TEST(RecordFrame, LengthBeyondAnyFile) {
  std::string file(kRecordHeadBytes, '\xFF');
  const std::uint32_t crc = Crc32c({file.data(), 8});
  const std::uint32_t masked = (crc >> 15 | crc << 17) + 0xA282EAD8u;
  file.replace(8, 4, reinterpret_cast<const char*>(&masked), 4);
  std::string_view record;
  std::uint64_t bytes = 0;
  EXPECT_EQ(ReadRecord(file, &record, &bytes), RecordRead::kCorrupt);
}

}  // namespace
}  // namespace monolith::core
