#include "core/row/entry_accessor.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/testing/bytes.h"
#include "core/testing/optimizers.h"

namespace monolith::core {
namespace {

using testing::AllOptimizers;
using testing::ForEachDamage;
using testing::FromHex;
using testing::NamedOptimizer;
using testing::ToHex;
using testing::Wrap;
using Floats = std::vector<float>;

template <typename Config>
InitializerConfig Initial(const Config& member) {
  InitializerConfig config;
  config.type = member;
  return config;
}

template <typename Config>
CompressorConfig Compressed(const Config& member) {
  CompressorConfig config;
  config.type = member;
  return config;
}

SegmentConfig TrainingSegment(const OptimizerConfig& optimizer, std::int32_t dim,
                              const CompressorConfig& compressor = Compressed(Fp32Config())) {
  return {Initial(ZerosConfig()), optimizer, compressor, dim};
}

EntryConfig Entry(std::vector<SegmentConfig> segments,
                  EntryConfig::Type type = EntryConfig::Type::kTraining) {
  return {std::move(segments), type};
}

template <typename Config>
SegmentConfig ServingSegment(const Config& compressor, std::int32_t dim) {
  return {std::nullopt, std::nullopt, Compressed(compressor), dim};
}

OptimizerConfig AdagradFrom(float initial_accumulator_value) {
  AdagradConfig config;
  config.initial_accumulator_value = initial_accumulator_value;
  return Wrap(config);
}

template <typename Function>
std::string ErrorOf(Function&& function) {
  try {
    function();
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "no error";
}

// A row in memory that was never zeroed, with a guard behind it.
class Row {
 public:
  explicit Row(const EntryConfig& config) : accessor_(MakeEntryAccessor(config)) {
    EXPECT_EQ(accessor_->row_bytes() % 4, 0u);
    memory_.assign(accessor_->row_bytes() / 4 + 1, kGuard);
    accessor_->Init(data());
  }
  ~Row() { EXPECT_EQ(memory_.back(), kGuard); }

  std::byte* data() { return reinterpret_cast<std::byte*>(memory_.data()); }
  const EntryAccessor& accessor() const { return *accessor_; }

  Floats Read() {
    Floats values(accessor_->dim());
    accessor_->Read(data(), values.data());
    return values;
  }
  void Assign(const Floats& values) { accessor_->Assign(values.data(), data()); }
  void AssignAdd(const Floats& values) { accessor_->AssignAdd(values.data(), data()); }
  void Optimize(const Floats& grad, const Floats& rates, std::int64_t global_step = 0) {
    const Floats before = grad;
    std::byte* const row = data();
    const float* const row_grad = grad.data();
    accessor_->Optimize(1, &row, &row_grad, rates.data(), global_step);
    EXPECT_EQ(grad, before);
  }
  std::string Dump(std::int64_t id, std::uint32_t last_update_sec, bool with_id = true) {
    std::string record;
    accessor_->AppendDump(data(), with_id, id, last_update_sec, &record);
    return record;
  }
  void Restore(std::string_view record) {
    EntryDumpView view;
    ASSERT_TRUE(ParseEntryDump(record, &view));
    accessor_->Restore(view, data());
  }
  void RestoreValues(std::string_view record) {
    EntryDumpView view;
    ASSERT_TRUE(ParseEntryDump(record, &view));
    accessor_->RestoreValues(view, data());
  }
  std::string Bytes() { return {reinterpret_cast<char*>(data()), accessor_->row_bytes()}; }

 private:
  static constexpr float kGuard = 12345.0f;

  std::unique_ptr<EntryAccessor> accessor_;
  std::vector<float> memory_;
};

void ExpectNear(const Floats& actual, const Floats& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i) EXPECT_NEAR(actual[i], expected[i], 1e-6) << i;
}

TEST(TrainingEntry, EachSegmentHasItsOwnLearningRate) {
  Row row(Entry({TrainingSegment(Wrap(SgdConfig()), 1), TrainingSegment(Wrap(SgdConfig()), 2)}));
  EXPECT_EQ(row.accessor().dim(), 3u);
  EXPECT_EQ(row.accessor().num_segments(), 2u);
  EXPECT_EQ(row.accessor().row_bytes(), 12u);
  EXPECT_TRUE(row.accessor().values_are_raw());
  EXPECT_EQ(row.Read(), (Floats{0.0f, 0.0f, 0.0f}));
  row.Optimize({1.0f, 2.0f, 3.0f}, {1.0f, 2.0f});
  EXPECT_EQ(row.Read(), (Floats{-1.0f, -4.0f, -6.0f}));
}

TEST(TrainingEntry, SegmentsAreInitializedInOrder) {
  ConstantsConfig three, four;
  three.constant = 3.0f;
  four.constant = 4.0f;
  SegmentConfig first = TrainingSegment(Wrap(SgdConfig()), 1);
  SegmentConfig second = TrainingSegment(Wrap(SgdConfig()), 2);
  first.init_config = Initial(three);
  second.init_config = Initial(four);
  EXPECT_EQ(Row(Entry({first, second})).Read(), (Floats{3.0f, 4.0f, 4.0f}));
}

TEST(TrainingEntry, ARestoredRowTakesTheSameStep) {
  Row row(Entry({TrainingSegment(AdagradFrom(0.1f), 1)}));
  row.Optimize({1.0f}, {1.0f});
  ExpectNear(row.Read(), {-0.95346254f});
  Row restored(Entry({TrainingSegment(AdagradFrom(0.1f), 1)}));
  const std::string record = row.Dump(7, 100);
  EntryDumpView view;
  ASSERT_TRUE(ParseEntryDump(record, &view));
  EXPECT_EQ(view.last_update_ts_sec, 100);
  restored.Restore(record);
  restored.Optimize({1.0f}, {1.0f});
  ExpectNear(restored.Read(), {-1.643528f});
}

TEST(TrainingEntry, CombinedSegmentsKeepTheirStates) {
  const EntryConfig config =
      Entry({TrainingSegment(AdagradFrom(1.0f), 1), TrainingSegment(AdagradFrom(2.0f), 2)});
  Row row(config);
  row.Optimize({1.0f, 2.0f, 3.0f}, {1.0f, 2.0f});
  ExpectNear(row.Read(), {-0.70710677f, -1.6329931f, -1.8090681f});
  Row restored(config);
  restored.Restore(row.Dump(7, 100));
  EXPECT_EQ(restored.Bytes(), row.Bytes());
  restored.Assign({0.0f, 0.0f, 0.0f});
  restored.Optimize({1.0f, 2.0f, 3.0f}, {1.0f, 2.0f});
  ExpectNear(restored.Read(), {-0.57735026f, -1.264911f, -1.3416407f});
}

TEST(TrainingEntry, AssignLeavesTheOptimizerAlone) {
  Row row(Entry({TrainingSegment(AdagradFrom(0.5f), 2)}));
  row.Assign({1.0f, 2.0f});
  row.AssignAdd({0.25f, -0.5f});
  EXPECT_EQ(row.Read(), (Floats{1.25f, 1.5f}));
  float state[2];
  std::memcpy(state, row.data() + 8, 8);
  EXPECT_EQ(state[0], 0.5f);
  EXPECT_EQ(state[1], 0.5f);
}

TEST(TrainingEntry, MovingAverageAmongOthersDumpsNothing) {
  const EntryConfig config =
      Entry({TrainingSegment(Wrap(MovingAverageConfig()), 1), TrainingSegment(AdagradFrom(1.0f), 1),
             TrainingSegment(Wrap(MovingAverageConfig()), 1)});
  Row row(config);
  row.Assign({1.0f, 2.0f, 3.0f});
  // One element in `opt`, though there are three segments.
  EXPECT_EQ(ToHex(row.Dump(1, 0)),
            "090100000000000000"
            "120c0000803f0000004000004040"
            "1a09"
            "0a070a050d0000803f"
            "2000");
  Row restored(config);
  restored.Restore(row.Dump(1, 0));
  EXPECT_EQ(restored.Bytes(), row.Bytes());
}

TEST(TrainingEntry, StatesFindTheirSegmentsBehindOnesWithoutState) {
  const EntryConfig config =
      Entry({TrainingSegment(Wrap(MovingAverageConfig()), 1), TrainingSegment(AdagradFrom(1.0f), 1),
             TrainingSegment(Wrap(MovingAverageConfig()), 1)});
  Row row(config);
  // A packed `norm` of 3, as AppendDump does not write it.
  row.Restore(FromHex("120c0000803f0000004000004040 1a0a 0a08 0a06 0a04 00004040"));
  EXPECT_EQ(ToHex(row.Bytes()), "0000803f000000400000404000004040");
}

TEST(TrainingEntry, AnEmptyOptimizerDumpIsWrittenAndRead) {
  const EntryConfig config = Entry({TrainingSegment(Wrap(MovingAverageConfig()), 1)});
  Row row(config);
  row.Assign({1.0f});
  EXPECT_EQ(ToHex(row.Dump(1, 0)), "090100000000000000150000803f1a002000");
  Row restored(config);
  restored.Restore(FromHex("090100000000000000150000803f"));
  EXPECT_EQ(restored.Read(), Floats{1.0f});
}

TEST(TrainingEntry, WireExamples) {
  Row sgd(Entry({TrainingSegment(Wrap(SgdConfig()), 1)}));
  sgd.Assign({1.0f});
  EXPECT_EQ(sgd.Dump(1, 100), FromHex("09 0100000000000000 15 0000803f 1a04 0a02 1200 2064"));
  Row adagrad(Entry({TrainingSegment(AdagradFrom(1.0f), 2)}));
  const std::string one_by_one = FromHex(
      "09ffffffffffffffff 150000003f 15000000bf 1a0e 0a0c 0a0a 0d0000803f 0d00000040 20d209");
  const std::string packed = FromHex(
      "09ffffffffffffffff 1208 0000003f000000bf 1a0e 0a0c 0a0a 0a08 0000803f00000040 20d209");
  for (const std::string& record : {one_by_one, packed}) {
    adagrad.Restore(record);
    EXPECT_EQ(adagrad.Read(), (Floats{0.5f, -0.5f}));
    EXPECT_EQ(ToHex(adagrad.Dump(-1, 1234)), ToHex(packed));
  }
}

TEST(TrainingEntry, WithoutIdAndBehindWhatIsThere) {
  Row row(Entry({TrainingSegment(Wrap(SgdConfig()), 1)}));
  row.Assign({1.0f});
  EXPECT_EQ(ToHex(row.Dump(1, 0, /*with_id=*/false)), "150000803f1a040a0212002000");
  std::string record = "before";
  row.accessor().AppendDump(row.data(), false, 0, 0xFFFFFFFFu, &record);
  EXPECT_EQ(record, "before" + FromHex("150000803f1a040a02120020ffffffff0f"));
}

// id -2, value 1.5, ts 7, and a state of 2 (and 3), serialized by protobuf.
struct ProtobufRecord {
  const char* name;
  const char* hex;
};
constexpr ProtobufRecord kProtobufRecords[] = {
    {"sgd", "09feffffffffffffff150000c03f1a040a0212002007"},
    {"adagrad", "09feffffffffffffff150000c03f1a090a070a050d000000402007"},
    {"ftrl", "09feffffffffffffff150000c03f1a0e0a0c1a0a0d0000004015000040402007"},
    {"dynamic_wd_adagrad", "09feffffffffffffff150000c03f1a0c0a0a22080d0000004010ac022007"},
    {"adadelta", "09feffffffffffffff150000c03f1a0e0a0c320a0d0000004015000040402007"},
    {"adam",
     "09feffffffffffffff150000c03f1a180a163a140d0000004015000040401d0000003f250000803e2007"},
    {"momentum", "09feffffffffffffff150000c03f1a090a074a050d000000402007"},
    {"rmsprop", "09feffffffffffffff150000c03f1a090a075a050d000000402007"},
    {"rmspropv2", "09feffffffffffffff150000c03f1a090a0762050d000000402007"},
    {"group_ftrl", "09feffffffffffffff150000c03f1a0e0a0c6a0a0d0000004015000040402007"},
    {"batch_softmax", "09feffffffffffffff150000c03f1a080a06720408c0843d2007"},
    {"group_adagrad", "09feffffffffffffff150000c03f1a090a077a050d000000402007"},
    {"amsgrad",
     "09feffffffffffffff150000c03f1a1d0a1b42190d000000401500004040"
     "1d00008040250000003f2d0000803e2007"},
};

TEST(TrainingEntry, WritesWhatItReadFromProtobuf) {
  for (const ProtobufRecord& expected : kProtobufRecords) {
    SCOPED_TRACE(expected.name);
    bool found = false;
    for (const NamedOptimizer& optimizer : AllOptimizers()) {
      if (optimizer.name != expected.name) continue;
      found = true;
      Row row(Entry({TrainingSegment(optimizer.config, 1)}));
      row.Restore(FromHex(expected.hex));
      EXPECT_EQ(row.Read(), Floats{1.5f});
      EXPECT_EQ(ToHex(row.Dump(-2, 7)), expected.hex);
    }
    EXPECT_TRUE(found);
  }
}

TEST(TrainingEntry, MemoryOrderOfFtrlIsNormThenZero) {
  Row row(Entry({TrainingSegment(Wrap(FtrlConfig()), 1)}));
  row.Restore(FromHex("150000c03f 1a0e0a0c1a0a 0d00000040 1500004040"));
  float state[2];
  std::memcpy(state, row.data() + 4, 8);
  EXPECT_EQ(state[0], 3.0f);
  EXPECT_EQ(state[1], 2.0f);
}

TEST(TrainingEntry, BothBetaPowersAreRestored) {
  Row row(Entry({TrainingSegment(Wrap(AdamConfig()), 1)}));
  row.Optimize({1.0f}, {0.1f});
  Row restored(Entry({TrainingSegment(Wrap(AdamConfig()), 1)}));
  restored.Restore(row.Dump(1, 0));
  float powers[2];
  std::memcpy(powers, restored.data() + 12, 8);
  EXPECT_NEAR(powers[0], 0.81f, 1e-6);
  EXPECT_NEAR(powers[1], 0.9801f, 1e-6);
}

TEST(TrainingEntry, FixedR8ReadsQuantizedAndKeepsFloats) {
  FixedR8Config fixed;
  fixed.r = 128.0f;  // A step is 1.
  Row row(Entry({TrainingSegment(Wrap(SgdConfig()), 2, Compressed(fixed)),
                 TrainingSegment(Wrap(SgdConfig()), 1)}));
  EXPECT_FALSE(row.accessor().values_are_raw());
  row.Assign({0.6f, -1.4f, 0.6f});
  EXPECT_EQ(row.Read(), (Floats{1.0f, -1.0f, 0.6f}));
  row.Optimize({1.0f, 1.0f, 1.0f}, {0.25f, 0.25f});  // 0.35, -1.65, 0.35
  EXPECT_EQ(row.Read(), (Floats{0.0f, -2.0f, 0.6f - 0.25f}));
  const std::string record = row.Dump(1, 0);
  EntryDumpView view;
  ASSERT_TRUE(ParseEntryDump(record, &view));
  Floats raw(3);
  view.num.CopyTo(raw.data());
  ExpectNear(raw, {0.35f, -1.65f, 0.35f});
}

TEST(TrainingEntry, OneBitReadsAndLearnsThroughTanh) {
  OneBitConfig one_bit;
  one_bit.step_size = 1000;
  Row row(Entry({TrainingSegment(Wrap(SgdConfig()), 1, Compressed(one_bit))}));
  row.Assign({2.0f});
  ExpectNear(row.Read(), {0.09640275f});
  row.Optimize({1.0f}, {1.0f}, 1);
  float raw = 0.0f;
  std::memcpy(&raw, row.data(), sizeof(raw));
  EXPECT_NEAR(raw, 2.0f - 0.00706508f, 1e-6);
}

TEST(TrainingEntry, WideRowsThroughARetriever) {
  FixedR8Config fixed;
  Row row(Entry({TrainingSegment(AdagradFrom(1.0f), 2000, Compressed(fixed))}));
  row.Optimize(Floats(2000, 1.0f), {1.0f});
  // -1 / sqrt(2) in steps of 1/128.
  EXPECT_EQ(row.Read(), Floats(2000, -91.0f / 128.0f));
}

TEST(TrainingEntry, WhatDoesNotFitIsNamed) {
  Row row(Entry({TrainingSegment(AdagradFrom(1.0f), 2)}));
  const auto restore = [&](const std::string& hex) {
    return ErrorOf([&] { row.Restore(FromHex(hex)); });
  };
  const std::string id = "090500000000000000";
  const std::string values = "150000803f150000803f";
  EXPECT_EQ(restore(id + "150000803f1a040a021200"),
            "Cannot restore id 5: the dump has dim 1, but the table has dim 2.");
  EXPECT_EQ(restore("150000803f"),
            "Cannot restore an entry without id: the dump has dim 1, but the table has dim 2.");
  EXPECT_EQ(restore(id + values),
            "Cannot restore id 5: the dump holds the states of 0 optimizers, but the table has 1.");
  EXPECT_EQ(restore(id + values +
                    "1a160a0a0a080d0000803f0d0000"
                    "0a080a060d0000803f00"),
            "Cannot restore id 5: segment 0: The adagrad state in the dump is malformed.");
  EXPECT_EQ(restore(id + values + "1a040a021200"),
            "Cannot restore id 5: segment 0: The optimizer is adagrad, but the dump holds sgd "
            "state.");
  EXPECT_EQ(restore(id + values + "1a020a00"),
            "Cannot restore id 5: segment 0: The optimizer is adagrad, but the dump holds no known "
            "state.");
  EXPECT_EQ(restore(id + values + "1a090a070a050d0000803f"),
            "Cannot restore id 5: segment 0: The adagrad state in the dump has 1 values of `norm`, "
            "expected 2.");
  EXPECT_EQ(restore(id + values + "1a100a0e0a0a0d0000803f0d0000803f1200"),
            "Cannot restore id 5: segment 0: The optimizer dump holds more than one state.");
  EXPECT_EQ(restore(id + values + "1a100a0c0a0a0d0000803f0d0000803f0a00"),
            "Cannot restore id 5: the dump holds the states of 2 optimizers, but the table has 1.");
  EXPECT_EQ(restore(id + values + "1a020a05"),
            "Cannot restore id 5: its optimizer dump is malformed.");
}

TEST(TrainingEntry, PackedStatesAreRead) {
  Row row(Entry({TrainingSegment(AdagradFrom(1.0f), 2)}));
  row.Restore(FromHex("1208 0000803f00000040 1a0e 0a0c 0a0a 0a08 0000404000008040"));
  EXPECT_EQ(ToHex(row.Bytes()), "0000803f000000400000404000008040");
}

class EveryOptimizer : public ::testing::TestWithParam<NamedOptimizer> {
 protected:
  [[nodiscard]] EntryConfig Config(bool stochastic_rounding = false) const {
    OptimizerConfig optimizer = GetParam().config;
    optimizer.stochastic_rounding_float16 = stochastic_rounding;
    return ConfigOf(optimizer);
  }
  // The optimizer between two others, so that offsets matter.
  [[nodiscard]] static EntryConfig ConfigOf(const OptimizerConfig& optimizer) {
    return Entry({TrainingSegment(AdagradFrom(0.5f), 2),
                  TrainingSegment(optimizer, static_cast<std::int32_t>(GetParam().dim)),
                  TrainingSegment(AdagradFrom(0.25f), 1)});
  }
  // A few random steps.
  static void Train(Row* row, unsigned seed, std::int64_t first_step, int steps) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (int i = 0; i < steps; ++i) {
      Floats grad(row->accessor().dim());
      for (float& g : grad) g = normal(random);
      row->Optimize(grad, {0.1f, 0.1f, 0.1f}, first_step + i);
    }
  }
};

TEST_P(EveryOptimizer, ARestoredRowGoesOnWithTheSameBits) {
  Row row(Config());
  Train(&row, 1, 1000, 3);
  const std::string record = row.Dump(-5, 1'700'000'000);
  Row restored(Config());
  restored.Restore(record);
  EXPECT_EQ(restored.Bytes(), row.Bytes());
  EXPECT_EQ(ToHex(restored.Dump(-5, 1'700'000'000)), ToHex(record));
  Train(&row, 2, 2000, 1);
  Train(&restored, 2, 2000, 1);
  EXPECT_EQ(restored.Bytes(), row.Bytes());
  EXPECT_NE(row.Dump(-5, 1'700'000'000), record);
}

TEST_P(EveryOptimizer, RoundedRowsAreDumpedLikeOthers) {
  Row row(Config(/*stochastic_rounding=*/true));
  Train(&row, 1, 0, 3);
  Row restored(Config());
  restored.Restore(row.Dump(1, 0));
  EXPECT_EQ(restored.Bytes(), row.Bytes());
}

TEST_P(EveryOptimizer, DamagedDumpsAreRestoredOrRefused) {
  Row row(Config());
  Train(&row, 1, 1000, 3);
  const std::string record = row.Dump(-5, 1'700'000'000);
  Row restored(Config());
  int refused = 0;
  ForEachDamage(record, 3000, [&](std::string_view damaged) {
    EntryDumpView view;
    if (!ParseEntryDump(damaged, &view)) {
      ++refused;
      return;
    }
    try {
      restored.accessor().Restore(view, restored.data());
    } catch (const std::invalid_argument& error) {
      ++refused;
      EXPECT_EQ(std::string(error.what()).rfind("Cannot restore ", 0), 0u) << error.what();
    }
  });
  EXPECT_GT(refused, 100);
  // The row is as good as new afterwards.
  restored.Restore(record);
  EXPECT_EQ(restored.Bytes(), row.Bytes());
}

TEST_P(EveryOptimizer, RefusesTheDumpsOfOthers) {
  for (const NamedOptimizer& other : AllOptimizers()) {
    if (other.dim != GetParam().dim ||
        other.config.type.index() == GetParam().config.type.index()) {
      continue;
    }
    Row row(Entry({TrainingSegment(GetParam().config, static_cast<std::int32_t>(other.dim))}));
    Row source(Entry({TrainingSegment(other.config, static_cast<std::int32_t>(other.dim))}));
    EXPECT_THROW(row.Restore(source.Dump(1, 0)), std::invalid_argument) << other.name;
  }
}

TEST_P(EveryOptimizer, TheValuesOfOthersAreTakenWithAFreshState) {
  for (const NamedOptimizer& other : AllOptimizers()) {
    if (other.dim != GetParam().dim) continue;
    Row source(ConfigOf(other.config)), row(Config()), expected(Config());
    Train(&source, 1, 1000, 3);
    Train(&row, 2, 1000, 3);  // A row that was there loses its state.
    row.RestoreValues(source.Dump(1, 0));
    expected.Assign(source.Read());
    EXPECT_EQ(row.Bytes(), expected.Bytes()) << other.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Optimizers, EveryOptimizer, ::testing::ValuesIn(AllOptimizers()),
                         [](const auto& info) { return info.param.name; });

EntryConfig Serving(std::vector<SegmentConfig> segments) {
  return Entry(std::move(segments), EntryConfig::Type::kServing);
}

TEST(ServingEntry, SegmentsAreCompressedOneBehindTheOther) {
  FixedR8Config fixed;
  fixed.r = 128.0f;
  OneBitConfig one_bit;
  one_bit.amplitude = 0.5f;
  Row row(Serving({ServingSegment(fixed, 3), ServingSegment(Fp16Config(), 2),
                   ServingSegment(one_bit, 1), ServingSegment(Fp32Config(), 1)}));
  EXPECT_EQ(row.accessor().dim(), 7u);
  EXPECT_EQ(row.accessor().row_bytes(), 12u);  // 3 + 4 + 1 + 4
  EXPECT_FALSE(row.accessor().values_are_raw());
  EXPECT_EQ(row.Read(), Floats(7, 0.0f));
  row.Assign({1.0f, -2.4f, 300.0f, 0.5f, 0.1f, 7.0f, 0.1f});
  EXPECT_EQ(row.Read(), (Floats{1.0f, -2.0f, 127.0f, 0.5f, 1638.0f / 16384.0f, 0.5f, 0.1f}));
}

TEST(ServingEntry, RowsOfOddSizeArePadded) {
  Row row(Serving({ServingSegment(Fp16Config(), 3)}));
  EXPECT_EQ(row.accessor().row_bytes(), 8u);
  Row raw(Serving({ServingSegment(Fp32Config(), 3), ServingSegment(Fp32Config(), 1)}));
  EXPECT_EQ(raw.accessor().row_bytes(), 16u);
  EXPECT_TRUE(raw.accessor().values_are_raw());
}

TEST(ServingEntry, AddsToZerosInANewRow) {
  Row row(Serving({ServingSegment(Fp16Config(), 2), ServingSegment(OneBitConfig(), 1)}));
  row.AssignAdd({0.5f, 0.25f, 3.0f});
  EXPECT_EQ(row.Read(), (Floats{0.5f, 0.25f, 0.1f}));
  row.AssignAdd({0.5f, 0.25f, -3.0f});
  EXPECT_EQ(row.Read(), (Floats{1.0f, 0.5f, -0.1f}));
}

TEST(ServingEntry, RestoresTheDumpOfATrainingRow) {
  Row training(Entry({TrainingSegment(AdagradFrom(1.0f), 2)}));
  training.Assign({0.5f, 0.1f});
  Row serving(Serving({ServingSegment(Fp16Config(), 2)}));
  serving.Restore(training.Dump(5, 100));
  EXPECT_EQ(serving.Read(), (Floats{0.5f, 1638.0f / 16384.0f}));
  serving.Assign({0.0f, 0.0f});
  serving.RestoreValues(training.Dump(5, 100));
  EXPECT_EQ(serving.Read(), (Floats{0.5f, 1638.0f / 16384.0f}));
  serving.Restore(FromHex("1208 0000803f0000803f"));  // Without optimizer, packed.
  EXPECT_EQ(serving.Read(), (Floats{1.0f, 1.0f}));
  EXPECT_EQ(ErrorOf([&] { serving.Restore(FromHex("090500000000000000150000803f")); }),
            "Cannot restore id 5: the dump has dim 1, but the table has dim 2.");
}

TEST(ServingEntry, RefusesWhatOnlyTrainingNeeds) {
  Row row(Serving({ServingSegment(Fp32Config(), 1)}));
  EXPECT_EQ(ErrorOf([&] { row.Optimize({1.0f}, {1.0f}); }),
            "ServingEntryAccessor doesn't support Optimize");
  EXPECT_EQ(ErrorOf([&] { (void)row.Dump(1, 0); }), "ServingEntryAccessor doesn't support Save");
  EXPECT_EQ(ErrorOf([&] { (void)row.accessor().num_segments(); }),
            "ServingEntryAccessor doesn't support SliceSize");
}

TEST(MakeEntryAccessor, SaysWhatIsMissing) {
  const auto make = [](const EntryConfig& config) {
    return ErrorOf([&] { (void)MakeEntryAccessor(config); });
  };
  SegmentConfig segment = TrainingSegment(Wrap(SgdConfig()), 4);
  segment.init_config.reset();
  EXPECT_EQ(make(Entry({segment})),
            "init or opt config is missing from entry config : segments { opt_config { sgd { } } "
            "comp_config { fp32 { } } dim_size: 4 } entry_type: TRAINING");
  segment = TrainingSegment(Wrap(SgdConfig()), 4);
  segment.opt_config.reset();
  EXPECT_EQ(make(Entry({segment})).rfind("init or opt config is missing from entry config : ", 0),
            0u);
  segment = TrainingSegment(Wrap(SgdConfig()), 4);
  segment.comp_config.reset();
  EXPECT_EQ(make(Entry({segment})), "no error");
  EXPECT_EQ(make(Serving({segment})).rfind("comp config is missing form entry config: ", 0), 0u);
  segment.comp_config = CompressorConfig();
  EXPECT_EQ(make(Entry({segment})), "no error");
  EXPECT_EQ(make(Serving({segment})), "FloatCompressorConfig must be set type. Got ``.");
  segment.init_config = InitializerConfig();
  EXPECT_EQ(make(Entry({segment})), "InitializerConfig must be set type. Got ``.");
  segment.dim_size.reset();
  EXPECT_EQ(make(Entry({segment})), "InitializerConfig must be set type. Got ``.");
  EXPECT_EQ(make(Serving({segment})), "FloatCompressorConfig must be set type. Got ``.");
  segment.init_config = Initial(ZerosConfig());
  segment.opt_config = OptimizerConfig();
  EXPECT_EQ(make(Entry({segment})), "OptimizerConfig must be set type. Got ``.");
  EXPECT_EQ(make(Entry({})), "The entry config has no segments: entry_type: TRAINING");
  EXPECT_EQ(make(Entry({}, EntryConfig::Type::kUnknown)),
            "Unknown entry type: entry_type: UNKNOWN");
  EXPECT_EQ(make(Entry({}, static_cast<EntryConfig::Type>(9))),
            "Unknown entry type: entry_type: 9");
}

TEST(MakeEntryAccessor, DimsComeFromTheSegmentOrItsParts) {
  ZerosConfig zeros;
  SgdConfig sgd;
  FixedR8Config fixed;
  zeros.dim_size = sgd.dim_size = fixed.dim_size = 3;
  SegmentConfig segment = {Initial(zeros), Wrap(sgd), Compressed(fixed), std::nullopt};
  EXPECT_EQ(MakeEntryAccessor(Entry({segment}))->dim(), 3u);
  EXPECT_EQ(MakeEntryAccessor(Serving({segment}))->dim(), 3u);
  segment.dim_size = 5;
  EXPECT_EQ(MakeEntryAccessor(Entry({segment}))->dim(), 5u);
  EXPECT_EQ(MakeEntryAccessor(Serving({segment}))->dim(), 5u);
  segment.dim_size.reset();
  fixed.dim_size = 2;
  segment.comp_config = Compressed(fixed);
  EXPECT_EQ(ErrorOf([&] { (void)MakeEntryAccessor(Entry({segment})); }),
            "Initializer/Optimizer/Retriever dim size should match. But got 3 vs 3 vs 2");
  zeros.dim_size = 1;
  segment.init_config = Initial(zeros);
  segment.comp_config = Compressed(Fp32Config());  // Reads raw values of any dim.
  EXPECT_EQ(ErrorOf([&] { (void)MakeEntryAccessor(Entry({segment})); }),
            "Initializer/Optimizer/Retriever dim size should match. But got 1 vs 3 vs 3");
}

TEST(MakeEntryAccessor, RefusesDimsThatAreNotPositive) {
  for (const std::int32_t dim : {0, -1, std::numeric_limits<std::int32_t>::min()}) {
    const SegmentConfig segment = TrainingSegment(Wrap(SgdConfig()), dim);
    const std::string start =
        "The dim_size of a segment must be positive, got " + std::to_string(dim);
    for (const EntryConfig& config : {Entry({segment}), Serving({segment})}) {
      EXPECT_EQ(ErrorOf([&] { (void)MakeEntryAccessor(config); }).rfind(start, 0), 0u);
    }
    SegmentConfig parts = segment;
    parts.dim_size.reset();
    ZerosConfig zeros;
    SgdConfig sgd;
    zeros.dim_size = sgd.dim_size = dim;
    parts.init_config = Initial(zeros);
    parts.opt_config = Wrap(sgd);
    EXPECT_EQ(ErrorOf([&] { (void)MakeEntryAccessor(Entry({parts})); }).rfind(start, 0), 0u);
  }
}

TEST(MakeEntryAccessor, DebugStrings) {
  EXPECT_EQ(MakeEntryAccessor(Entry({TrainingSegment(AdagradFrom(1.0f), 2)}))->DebugString(),
            "TrainingEntryAccessor(dim=2, segments=1, row_bytes=16)");
  EXPECT_EQ(MakeEntryAccessor(Serving({ServingSegment(Fp16Config(), 3)}))->DebugString(),
            "ServingEntryAccessor(dim=3, segments=1, row_bytes=8)");
}

}  // namespace
}  // namespace monolith::core
