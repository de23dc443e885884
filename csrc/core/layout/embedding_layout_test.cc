#include "core/layout/embedding_layout.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "core/layout/id_sharding.h"
#include "core/layout/serialized_ids.h"
#include "core/wire/wire.h"

namespace monolith::core {
namespace {

// A feature of `dim` floats: FeatureConfigs.feature_configs, an entry of a map.
void AddFeature(const std::string& name, std::uint64_t pooling, std::uint64_t dim,
                std::uint64_t length, std::string* configs) {
  std::string feature;
  WireWriter of_feature(&feature);
  of_feature.Bytes(1, "table");
  of_feature.Varint(2, pooling);
  of_feature.Varint(3, dim);
  of_feature.Varint(4, length);
  std::string entry;
  WireWriter(&entry).Bytes(1, name);
  WireWriter(&entry).Bytes(2, feature);
  WireWriter(configs).Bytes(1, entry);
}

// A layout of whole rows of one feature, `dims` for each example.
void AddLayout(const std::string& name, const std::string& feature, std::uint64_t end,
               const std::vector<std::uint64_t>& dims, std::string* configs) {
  std::string slice;
  WireWriter(&slice).Bytes(1, feature);
  WireWriter(&slice).Varint(3, end);
  std::string shape;
  WireWriter(&shape).Varint(1, ~std::uint64_t{0});  // -1
  for (const std::uint64_t dim : dims) WireWriter(&shape).Varint(1, dim);
  std::string out;
  WireWriter(&out).Bytes(1, slice);
  WireWriter(&out).Bytes(3, shape);
  std::string entry;
  WireWriter(&entry).Bytes(1, name);
  WireWriter(&entry).Bytes(2, out);
  WireWriter(configs).Bytes(2, entry);
}

LayoutConfig MeanAndFirstTwo() {
  std::string configs;
  AddFeature("mean", 1, 1, 0, &configs);
  AddFeature("first", 3, 1, 2, &configs);
  AddLayout("a", "mean", 1, {1}, &configs);
  AddLayout("b", "first", 1, {2, 1}, &configs);
  return ParseLayoutConfig(configs);
}

template <typename T>
ArrayView<T> View(const std::vector<T>& values) {
  return {values.data(), values.size()};
}

TEST(LayoutConfig, FeaturesAndOutputsAreSorted) {
  const LayoutConfig config = MeanAndFirstTwo();
  ASSERT_EQ(config.features.size(), 2u);
  EXPECT_EQ(config.features[0].name, "first");
  EXPECT_EQ(config.Find("mean"), 1u);
  EXPECT_EQ(config.Find("missing"), 2u);
  ASSERT_EQ(config.outputs.size(), 2u);
  EXPECT_EQ(config.outputs[1].dims, (std::vector<std::int64_t>{2, 1}));
}

TEST(LayoutConfig, MalformedBytesAreRefused) {
  std::string configs;
  AddFeature("f", 0, 1, 0, &configs);
  for (std::size_t size = 1; size < configs.size(); ++size) {
    EXPECT_THROW((void)ParseLayoutConfig(configs.substr(0, size)), std::invalid_argument) << size;
  }
  EXPECT_EQ(ParseLayoutConfig(configs).features.size(), 1u);
}

TEST(EmbeddingLayout, ThereAndBack) {
  const LayoutConfig config = MeanAndFirstTwo();
  const std::vector<std::int64_t> first = {7, 8, 9, 7};
  const std::vector<std::int64_t> mean = {5, 7};
  const std::vector<std::int64_t> first_splits = {0, 3, 4};
  const std::vector<std::int64_t> mean_splits = {0, 0, 2};
  const std::vector<FeatureIds> features = {{View(first), View(first_splits), false},
                                            {View(mean), View(mean_splits), false}};
  IdSharding sharding(config, {}, features, 2, 1, true);
  for (std::size_t row = 0; row < sharding.num_rows(); ++row) sharding.Number(row);
  sharding.Place();
  for (std::size_t row = 0; row < sharding.num_rows(); ++row) sharding.Fill(row);
  // 7 of one feature is not 7 of the other.
  ASSERT_EQ(sharding.ids().size(), 1u);
  EXPECT_EQ(sharding.ids()[0], (std::vector<std::int64_t>{7, 8, 9, 5, 7}));
  EXPECT_EQ(sharding.row_splits()[0], (std::vector<std::int64_t>{0, 3, 5}));

  LayoutOffsets offsets;
  offsets.nfl = View(sharding.nfl_offset());
  offsets.feature = View(sharding.feature_offset());
  offsets.fid = View(sharding.fid_offset());
  offsets.batch_size = 2;
  const LayoutIndex index(config, offsets);
  const std::vector<float> rows = {1, 2, 3, 10, 20};
  RowBlock block;
  block.size = 5;
  const float* list = rows.data();
  const auto found = index.FindRows<const float>(config, {block}, &list);
  std::vector<float> a(2);
  std::vector<float> b(4);
  float* const outputs[] = {a.data(), b.data()};
  MakeLayouts(config, index, found, 0, 2, outputs);
  EXPECT_EQ(a, (std::vector<float>{0, 15}));       // Nothing; the mean of 10 and 20.
  EXPECT_EQ(b, (std::vector<float>{1, 2, 1, 0}));  // The third id is left out.

  const std::vector<float> a_grad = {100, 8};
  const std::vector<float> b_grad = {1, 2, 4, 1000};
  const float* const grads[] = {a_grad.data(), b_grad.data()};
  std::vector<float> sums(5, 0.0F);
  float* to = sums.data();
  const auto rows_to = index.FindRows<float>(config, {block}, &to);
  for (std::size_t part = 0; part < 3; ++part) {
    AddLayoutGradients(config, index, rows_to, grads, part, 3);
  }
  EXPECT_EQ(sums, (std::vector<float>{5, 2, 0, 4, 4}));
}

TEST(EmbeddingLayout, RowsOutsideOfTheirBlockAreRefused) {
  const LayoutConfig config = MeanAndFirstTwo();
  const std::vector<std::uint32_t> nfl = {0, 1};
  const std::vector<std::int32_t> feature = {0, 1};
  const std::vector<std::uint64_t> fid = {0, 5};
  LayoutOffsets offsets;
  offsets.nfl = View(nfl);
  offsets.feature = View(feature);
  offsets.fid = View(fid);
  offsets.batch_size = 1;
  const LayoutIndex index(config, offsets);
  RowBlock block;
  block.size = 5;
  const float row = 0;
  const float* list = &row;
  EXPECT_THROW((void)index.FindRows<const float>(config, {block}, &list), std::invalid_argument);
}

TEST(SerializedIds, MalformedMessagesAreRefused) {
  const LayoutConfig config = MeanAndFirstTwo();
  std::string list;
  WireWriter(&list).Bytes(1, std::string(16, '\1'));
  std::string feature;
  WireWriter(&feature).Bytes(2, list);
  std::string named;
  WireWriter(&named).Bytes(1, "mean");
  WireWriter(&named).Bytes(2, feature);
  std::string example;
  WireWriter(&example).Bytes(1, named);
  const SerializedIds ids(config, ExampleFormat::kExample, {example, ""});
  EXPECT_EQ(ids.batch_size(), 2);
  EXPECT_EQ(ids.features()[1].ids.size, 2u);
  for (std::size_t size = 1; size < example.size(); ++size) {
    EXPECT_THROW(SerializedIds(config, ExampleFormat::kExample, {example.substr(0, size)}),
                 std::invalid_argument)
        << size;
  }
}

}  // namespace
}  // namespace monolith::core
