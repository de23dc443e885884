#include "core/wire/wire.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <vector>

#include "core/testing/bytes.h"

namespace monolith::core {
namespace {

using testing::FromHex;
using testing::InExactMemory;
using testing::ToHex;

// All fields of a message, or nothing if it is malformed.
std::vector<WireField> Fields(std::string_view message) {
  std::vector<WireField> fields;
  WireReader reader(message);
  for (WireField field; reader.Next(&field);) fields.push_back(field);
  return reader.ok() ? fields : std::vector<WireField>();
}

bool IsWellFormed(std::string_view message) {
  WireReader reader(message);
  for (WireField field; reader.Next(&field);) {
  }
  return reader.ok();
}

TEST(WireReader, ReadsEachWireType) {
  const std::string message = FromHex("0896 01 11 0100000000000080 1a03616263 25 0000803f");
  const auto fields = Fields(message);
  ASSERT_EQ(fields.size(), 4u);
  EXPECT_EQ(fields[0].number, 1u);
  EXPECT_EQ(fields[0].type, WireType::kVarint);
  EXPECT_EQ(fields[0].value, 150u);  // The example of the protobuf documentation.
  EXPECT_EQ(fields[1].number, 2u);
  EXPECT_EQ(fields[1].type, WireType::kFixed64);
  EXPECT_EQ(fields[1].value, 0x8000000000000001u);
  EXPECT_EQ(fields[2].number, 3u);
  EXPECT_EQ(fields[2].bytes, "abc");
  EXPECT_EQ(fields[3].number, 4u);
  float number = 0.0f;
  EXPECT_TRUE(ReadScalar(fields[3], &number));
  EXPECT_EQ(number, 1.0f);
}

TEST(WireReader, EmptyMessageIsWellFormed) {
  EXPECT_TRUE(IsWellFormed(""));
  EXPECT_TRUE(Fields("").empty());
}

TEST(WireReader, LargestFieldNumberAndVarint) {
  std::string message;
  WireWriter(&message).Varint((1u << 29) - 1, std::numeric_limits<std::uint64_t>::max());
  const auto fields = Fields(message);
  ASSERT_EQ(fields.size(), 1u);
  EXPECT_EQ(fields[0].number, (1u << 29) - 1);
  EXPECT_EQ(fields[0].value, std::numeric_limits<std::uint64_t>::max());
}

TEST(WireReader, SkipsGroups) {
  // Group 1 { field 2: 5, group 3 {}, field 4: "a" } then field 5: 6.
  const auto fields = Fields(FromHex("0b 1005 1b 1c 220161 0c 2806"));
  ASSERT_EQ(fields.size(), 1u);
  EXPECT_EQ(fields[0].number, 5u);
}

TEST(WireReader, RefusesMalformedMessages) {
  for (const char* hex : {
           "08",                        // No value.
           "80",                        // Tag without end.
           "0880",                      // Varint without end.
           "08ffffffffffffffffff02",    // More than 64 bits.
           "08ffffffffffffffffffff01",  // More than 10 bytes.
           "0901020304050607",          // Seven bytes of eight.
           "0a0261",                    // Shorter than its length.
           "0affffffffffffffffff01",    // Length beyond any memory.
           "0d010203",                  // Three bytes of four.
           "0001",                      // Field number 0.
           "0e",                        // Wire type 6.
           "0f",                        // Wire type 7.
           "0c",                        // End of a group that never began.
           "0b",                        // Group without end.
           "0b14",                      // Group ended by another number.
           "0b0e0c",                    // Wire type 6 inside a group.
           "808080801000",              // Field number 2^29.
       }) {
    InExactMemory(FromHex(hex),
                  [&](std::string_view message) { EXPECT_FALSE(IsWellFormed(message)) << hex; });
  }
}

TEST(WireReader, RefusesGroupsNestedWithoutEnd) {
  EXPECT_FALSE(IsWellFormed(std::string(1 << 20, '\x0b')));
}

TEST(ReadScalar, IgnoresAnotherWireType) {
  const auto fields = Fields(FromHex("0805 1500000000"));
  float number = 7.0f;
  EXPECT_FALSE(ReadScalar(fields[0], &number));
  EXPECT_EQ(number, 7.0f);
  std::int32_t integer = 7;
  EXPECT_FALSE(ReadScalar(fields[1], &integer));
  EXPECT_EQ(integer, 7);
  std::string text = "kept";
  EXPECT_FALSE(ReadScalar(fields[0], &text));
  EXPECT_EQ(text, "kept");
}

TEST(ReadScalar, IntegersAreWrittenAsTheyAreRead) {
  std::string message;
  WireWriter writer(&message);
  writer.Varint(1, static_cast<std::uint64_t>(std::int64_t{-5}));
  writer.Double(2, 0.1);
  writer.Bytes(3, "name");
  writer.Float(4, -0.5f);
  const auto fields = Fields(message);
  ASSERT_EQ(fields.size(), 4u);
  std::int32_t small = 0;
  std::int64_t large = 0;
  bool truth = false;
  double number = 0;
  float single = 0;
  std::string name;
  EXPECT_TRUE(ReadScalar(fields[0], &small));
  EXPECT_TRUE(ReadScalar(fields[0], &large));
  EXPECT_TRUE(ReadScalar(fields[0], &truth));
  EXPECT_TRUE(ReadScalar(fields[1], &number));
  EXPECT_TRUE(ReadScalar(fields[2], &name));
  EXPECT_TRUE(ReadScalar(fields[3], &single));
  EXPECT_EQ(small, -5);
  EXPECT_EQ(large, -5);
  EXPECT_TRUE(truth);
  EXPECT_EQ(number, 0.1);
  EXPECT_EQ(name, "name");
  EXPECT_EQ(single, -0.5f);
}

TEST(AppendUint32s, PackedAndUnpacked) {
  std::vector<std::uint32_t> values;
  const std::string message = FromHex("1005 1204 01 ac02 03 1006 0a01ff");
  for (const WireField& field : Fields(message)) {
    if (field.number == 2) {
      ASSERT_TRUE(AppendUint32s(field, &values));
    }
  }
  EXPECT_EQ(values, (std::vector<std::uint32_t>{5, 1, 300, 3, 6}));
}

TEST(AppendUint32s, RefusesPackedVarintWithoutEnd) {
  std::vector<std::uint32_t> values;
  const std::string message = FromHex("12020180");
  EXPECT_FALSE(AppendUint32s(Fields(message)[0], &values));
}

// The floats of field 2 in `message`.
std::vector<float> ReadFloats(std::string_view message) {
  FloatsView view;
  WireReader reader(message);
  for (WireField field; reader.Next(&field);) {
    if (field.number == 2) {
      EXPECT_TRUE(view.Add(message, field, &reader));
    }
  }
  EXPECT_TRUE(reader.ok());
  std::vector<float> floats(view.size());
  view.CopyTo(floats.data());
  return floats;
}

TEST(FloatsView, ReadsWhateverTheWriterChose) {
  const std::string one = "150000803f", two = "1500000040", three = "1500004040";
  const std::string packed_two_three = "12080000004000004040";
  const std::vector<float> expected = {1.0f, 2.0f, 3.0f};
  EXPECT_EQ(ReadFloats(FromHex(one + two + three)), expected);
  EXPECT_EQ(ReadFloats(FromHex("120c0000803f0000004000004040")), expected);
  EXPECT_EQ(ReadFloats(FromHex(one + packed_two_three)), expected);
  EXPECT_EQ(ReadFloats(FromHex(one + "0805" + two + "0805" + three)), expected);
  EXPECT_EQ(ReadFloats(FromHex("1200" + one + two + "1200" + three)), expected);
  // A tag of two bytes where one would do.
  EXPECT_EQ(ReadFloats(FromHex("95000000803f" + two + "950000004040")), expected);
  // A varint under the same number is not one of them.
  EXPECT_EQ(ReadFloats(FromHex("1005" + one + two + three)), expected);
  EXPECT_TRUE(ReadFloats("").empty());
}

TEST(FloatsView, LargeFieldNumbers) {
  std::string message;
  WireWriter writer(&message);
  writer.Float(16, 1.0f);
  writer.Float(16, 2.0f);
  FloatsView view;
  WireReader reader(message);
  for (WireField field; reader.Next(&field);) ASSERT_TRUE(view.Add(message, field, &reader));
  float floats[2];
  ASSERT_EQ(view.size(), 2u);
  view.CopyTo(floats);
  EXPECT_EQ(floats[0], 1.0f);
  EXPECT_EQ(floats[1], 2.0f);
}

TEST(FloatsView, RefusesPackedFloatsOfOddLength) {
  const std::string message = FromHex("1203000000");
  WireReader reader(message);
  WireField field;
  ASSERT_TRUE(reader.Next(&field));
  FloatsView view;
  EXPECT_FALSE(view.Add(message, field, &reader));
}

TEST(WireWriter, WritesWhatProtobufWrites) {
  // MultiHashTableMetadata{table_name: "slot0", num_entries: 2}.
  std::string message;
  WireWriter writer(&message);
  writer.Bytes(1, "slot0");
  writer.Varint(2, 2);
  EXPECT_EQ(ToHex(message), "0a05736c6f74301002");
}

TEST(ReadFloats, ReadsWhatWriteFloatsWrote) {
  const std::vector<float> values = {1.5f, -0.0f, 3e38f};
  std::string bytes(FloatsBytes(3), '\0');
  EXPECT_EQ(WriteFloats(2, values.data(), 3, bytes.data()), bytes.data() + bytes.size());
  EXPECT_EQ(ToHex(bytes), "120c0000c03f00000080e6b1617f");
  std::vector<float> read(3);
  EXPECT_TRUE(core::ReadFloats(2, bytes.data(), 3, read.data()));
  EXPECT_EQ(std::memcmp(read.data(), values.data(), 12), 0);
  EXPECT_FALSE(core::ReadFloats(3, bytes.data(), 3, read.data()));
  EXPECT_FALSE(core::ReadFloats(2, bytes.data(), 2, read.data()));
}

TEST(ReadFloats, OneFloatIsNotPacked) {
  const float value = 1.5f;
  std::string bytes(FloatsBytes(1), '\0');
  EXPECT_EQ(WriteFloats(2, &value, 1, bytes.data()), bytes.data() + bytes.size());
  EXPECT_EQ(ToHex(bytes), "150000c03f");
  float read = 0;
  EXPECT_TRUE(core::ReadFloats(2, bytes.data(), 1, &read));
  EXPECT_EQ(read, value);
  EXPECT_FALSE(core::ReadFloats(1, bytes.data(), 1, &read));
}

TEST(VarintBytes, AgreesWithWriteVarint) {
  char buffer[10];
  for (int bits = 0; bits < 64; ++bits) {
    for (const std::uint64_t value : {std::uint64_t{1} << bits, (std::uint64_t{1} << bits) - 1}) {
      const char* end = WriteVarint(value, buffer);
      EXPECT_EQ(VarintBytes(value), static_cast<std::size_t>(end - buffer)) << value;
    }
  }
}

}  // namespace
}  // namespace monolith::core
