#include "core/data/example_parser.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "core/data/fid.h"
#include "core/testing/bytes.h"
#include "core/wire/wire.h"

namespace monolith::core {
namespace {

using testing::ForEachDamage;

std::string Message(std::uint32_t number, const std::string& bytes) {
  std::string message;
  WireWriter(&message).Bytes(number, bytes);
  return message;
}

// Field 1 of a list: packed fids.
std::string Fids(const std::vector<std::uint64_t>& fids) {
  return Message(1, std::string(reinterpret_cast<const char*>(fids.data()), fids.size() * 8));
}

std::string NamedFeature(const std::string& name, const std::string& feature) {
  return Message(1, Message(1, name) + Message(2, feature));
}

ParseSpec MakeSpec(RecordFormat format) {
  ParseSpec spec;
  spec.format = format;
  spec.sparse_names = {"user", "item"};
  spec.sparse_slots = {-1, -1};
  spec.dense = {{"label", 1, DenseType::kFloat, false}, {"uid", 1, DenseType::kInt64, true}};
  return spec;
}

std::string MakeExample() {
  std::string labels;
  WireWriter(&labels).Fixed32(101, 0x3f800000);  // 1.0f
  std::string uid;
  WireWriter(&uid).Fixed64(2, 77);
  return NamedFeature("user", Message(2, Fids({5}))) +
         NamedFeature("item", Message(1, Fids({FidV1(3, 8).value(), FidV1(3, 9).value()}))) +
         NamedFeature("other", Message(3, "")) + labels + Message(100, uid);
}

std::vector<std::int64_t> Values(const ParsedRows& rows, std::size_t column) {
  const FidBuffer& values = rows.sparse[column].values;
  return {values.begin(), values.end()};
}

std::string Refusal(const ExampleParser& parser, const std::string& record, ParsedRows* rows) {
  try {
    parser.Parse(record, rows);
  } catch (const std::logic_error& e) {
    return e.what();
  }
  return "";
}

TEST(ExampleParser, ReadsIdsLabelsAndLineIds) {
  const ExampleParser parser(MakeSpec(RecordFormat::kExample));
  ParsedRows rows = parser.MakeRows();
  parser.Parse(MakeExample(), &rows);
  parser.Parse("", &rows);
  parser.Parse(MakeExample(), &rows);
  EXPECT_EQ(rows.num_rows, 3);
  EXPECT_EQ(Values(rows, 0), (std::vector<std::int64_t>{5, 5}));
  EXPECT_EQ(rows.sparse[0].ends, (std::vector<std::int64_t>{1, 1, 2}));
  // Version 1 becomes version 2.
  const auto first = static_cast<std::int64_t>(FidV2(3, 8).value());
  EXPECT_EQ(Values(rows, 1), (std::vector<std::int64_t>{first, first + 1, first, first + 1}));
  EXPECT_EQ(rows.dense[0].floats, (std::vector<float>{1, 0, 1}));
  EXPECT_EQ(rows.dense[1].integers, (std::vector<std::int64_t>{77, 0, 77}));
}

TEST(ExampleParser, ARefusedRecordLeavesNoTrace) {
  const ExampleParser parser(MakeSpec(RecordFormat::kExample));
  ParsedRows rows = parser.MakeRows();
  parser.Parse(MakeExample(), &rows);
  const std::string floats = MakeExample() + NamedFeature("item", Message(3, ""));
  EXPECT_EQ(
      Refusal(parser, floats, &rows),
      "sparse feature 'item': it holds float_list, but sparse features are a fid_v1_list or a "
      "fid_v2_list");
  EXPECT_NE(Refusal(parser, MakeExample() + "\x0a\x7f", &rows), "");
  EXPECT_EQ(rows.num_rows, 1);
  EXPECT_EQ(rows.sparse[1].values.size(), 2u);
  EXPECT_EQ(rows.dense[0].floats.size(), 1u);
}

// Ids of both columns and the refusal, if any, of a record that comes behind others.
std::string Describe(const ExampleParser& parser, const std::string& record, ParsedRows* rows) {
  parser.Clear(rows);
  std::string text = Refusal(parser, record, rows) + ";";
  for (const std::size_t column : {0, 1}) {
    for (const std::int64_t id : Values(*rows, column)) text += " " + std::to_string(id);
    text += ";";
  }
  return text;
}

TEST(ExampleParser, FeaturesComeInAnyOrderAndInAnyForm) {
  const ExampleParser parser(MakeSpec(RecordFormat::kExample));
  ParsedRows rows = parser.MakeRows();
  const auto describe = [&](const std::string& record) { return Describe(parser, record, &rows); };
  const std::string user = NamedFeature("user", Message(2, Fids({5})));
  const std::string item = NamedFeature("item", Message(2, Fids({6, 7})));
  const std::string other = NamedFeature("other", Message(3, ""));
  EXPECT_EQ(describe(user + other + item), "; 5; 6 7;");
  EXPECT_EQ(describe(item + other + user), "; 5; 6 7;");
  EXPECT_EQ(describe(user + item), "; 5; 6 7;");
  EXPECT_EQ(describe(user), "; 5;;");
  EXPECT_EQ(describe(user + user + item), "; 5 5; 6 7;");
  // More ids than fit into 128 bytes.
  const std::string many = NamedFeature("item", Message(2, Fids(std::vector<std::uint64_t>(20))));
  EXPECT_EQ(describe(user + many).size(), std::string("; 5;;").size() + 2 * 20);
  // The last name counts, and the feature may come before it.
  const std::string renamed =
      Message(1, Message(1, "item") + Message(2, Message(2, Fids({5}))) + Message(1, "user"));
  EXPECT_EQ(describe(renamed + item), "; 5; 6 7;");
  // One by one, no ids, no feature, no name.
  std::string single;
  WireWriter(&single).Fixed64(1, 5);
  EXPECT_EQ(describe(NamedFeature("user", Message(2, single)) + item), "; 5; 6 7;");
  EXPECT_EQ(describe(NamedFeature("user", Message(2, "")) + item), ";; 6 7;");
  EXPECT_EQ(describe(Message(1, Message(1, "user")) + Message(1, "") + item), ";; 6 7;");
}

TEST(ExampleParser, RecordsBeforeDoNotChangeWhatIsRead) {
  const ExampleParser parser(MakeSpec(RecordFormat::kExample));
  ParsedRows rows = parser.MakeRows();
  ForEachDamage(MakeExample(), 500, [&](std::string_view damaged) {
    Refusal(parser, MakeExample(), &rows);  // Its names are expected now.
    ParsedRows fresh = parser.MakeRows();
    const std::string record(damaged);
    ASSERT_EQ(Describe(parser, record, &rows), Describe(parser, record, &fresh));
  });
}

TEST(ExampleParser, ManyNamesAreReadThoughNotRemembered) {
  const ExampleParser parser(MakeSpec(RecordFormat::kExample));
  ParsedRows rows = parser.MakeRows();
  std::string record;
  for (int i = 0; i < 5000; ++i) record += NamedFeature(std::to_string(i), Message(2, Fids({1})));
  record += NamedFeature("user", Message(2, Fids({5})));
  EXPECT_EQ(Describe(parser, record, &rows), "; 5;;");
  EXPECT_EQ(Describe(parser, record + record, &rows), "; 5 5;;");
}

std::string MakeBatch(int batch_size, int num_features, bool shared) {
  std::string column = Message(1, "user");
  for (int i = 0; i < num_features; ++i) column += Message(2, Message(2, Fids({7, 8})));
  if (shared) WireWriter(&column).Varint(3, 1);
  std::string batch = Message(1, column);
  WireWriter(&batch).Varint(3, batch_size);
  return batch;
}

TEST(ExampleParser, BatchesHaveOneFeaturePerRowOrOneForAll) {
  const ExampleParser parser(MakeSpec(RecordFormat::kExampleBatch));
  ParsedRows rows = parser.MakeRows();
  parser.Parse(MakeBatch(2, 2, false), &rows);
  parser.Parse(MakeBatch(2, 1, true), &rows);
  parser.Parse(MakeBatch(0, 1, true), &rows);
  EXPECT_EQ(rows.num_rows, 4);
  EXPECT_EQ(Values(rows, 0), (std::vector<std::int64_t>{7, 8, 7, 8, 7, 8, 7, 8}));
  EXPECT_EQ(rows.sparse[0].ends, (std::vector<std::int64_t>{2, 4, 6, 8}));
  EXPECT_EQ(rows.sparse[1].ends, (std::vector<std::int64_t>{0, 0, 0, 0}));
  EXPECT_EQ(Refusal(parser, MakeBatch(3, 2, false), &rows),
            "ExampleBatch batch_size should be equal to named_feature size, while got 3 vs 2 for "
            "feature_name user");
  EXPECT_EQ(Refusal(parser, MakeBatch(1 << 30, 1, true), &rows).substr(0, 30),
            "its batch_size of 1073741824 d");
  EXPECT_EQ(rows.num_rows, 4);
}

TEST(ExampleParser, InstancesAreDividedBySlot) {
  ParseSpec spec;
  spec.format = RecordFormat::kInstance;
  spec.sparse_names = {"slot_3", "named"};
  spec.sparse_slots = {3, -1};
  spec.convert_v1 = false;
  const ExampleParser parser(spec);
  ParsedRows rows = parser.MakeRows();
  const std::uint64_t fid = FidV1(3, 1).value();
  parser.Parse(Fids({FidV1(2, 1).value(), fid}) + Message(9, Message(1, "named") + Message(2, "")),
               &rows);
  EXPECT_EQ(Values(rows, 0), (std::vector<std::int64_t>{static_cast<std::int64_t>(fid)}));
  EXPECT_EQ(rows.sparse[1].ends, (std::vector<std::int64_t>{0}));
}

TEST(ExampleParser, FidsInSlotsThatNobodyAskedForAreCounted) {
  ParseSpec spec;
  spec.format = RecordFormat::kInstance;
  spec.sparse_names = {"slot_3"};
  spec.sparse_slots = {3};
  const ExampleParser parser(spec);
  ParsedRows rows = parser.MakeRows();
  const std::string record = Fids({FidV1(2, 1).value(), FidV1(3, 1).value()});
  parser.Parse(record, &rows);
  parser.Parse(record, &rows);
  EXPECT_EQ(rows.num_unasked, 2);
  EXPECT_EQ(rows.unasked_slot, 2u);
  EXPECT_NE(Refusal(parser, record + Message(1, "x"), &rows), "");
  EXPECT_EQ(rows.num_unasked, 2);
  parser.Clear(&rows);
  EXPECT_EQ(rows.num_unasked, 0);
}

TEST(ExampleParser, MutatedBytesAreReadOrRefused) {
  for (const RecordFormat format :
       {RecordFormat::kExample, RecordFormat::kExampleBatch, RecordFormat::kInstance}) {
    const ExampleParser parser(MakeSpec(format));
    ParsedRows rows = parser.MakeRows();
    const bool is_batch = format == RecordFormat::kExampleBatch;
    for (const bool shared : {false, true}) {
      const std::string record = is_batch ? MakeBatch(2, 2, shared) : MakeExample();
      ForEachDamage(record, 500, [&](std::string_view damaged) {
        try {
          parser.Parse(damaged, &rows);
        } catch (const std::logic_error&) {
        }
        ASSERT_EQ(rows.sparse[0].ends.size(), static_cast<std::size_t>(rows.num_rows));
        ASSERT_EQ(rows.dense[0].floats.size(), static_cast<std::size_t>(rows.num_rows));
        if (rows.num_rows > 10000) rows = parser.MakeRows();
      });
    }
  }
}

}  // namespace
}  // namespace monolith::core
