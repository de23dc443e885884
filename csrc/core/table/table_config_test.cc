#include "core/table/table_config.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

#include "core/testing/bytes.h"
#include "core/wire/wire.h"

namespace monolith::core {
namespace {

using testing::ForEachDamage;
using testing::FromHex;

// Serialized by protobuf itself.
constexpr char kTableHex[] =
    "0a5b0a340a0c120a15000080be1d0000003f12190a151d0000803f2d0000003e30ffffffffffffffffff0120011a07"
    "1a05150000004038040a210a077a05150000404012088201051d0000003f1a0a220810e8072d0000803e3801100210"
    "ac021a080a0408071001101e2a003002380140185001";

template <typename Function>
std::string ErrorOf(Function&& function) {
  try {
    function();
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "no error";
}

TEST(ParseEmbeddingHashTableConfig, ReadsEveryField) {
  const EmbeddingHashTableConfig config = ParseEmbeddingHashTableConfig(FromHex(kTableHex));
  ASSERT_EQ(config.entry_config.segments.size(), 2u);
  const SegmentConfig& first = config.entry_config.segments[0];
  EXPECT_EQ(first.dim_size, 4);
  const auto& uniform = std::get<RandomUniformConfig>(first.init_config->type);
  EXPECT_EQ(uniform.minval, -0.25f);
  EXPECT_EQ(uniform.maxval, 0.5f);
  const auto& adagrad = std::get<AdagradConfig>(first.opt_config->type);
  EXPECT_EQ(adagrad.learning_rate, 0.001f);  // Not set.
  EXPECT_EQ(adagrad.initial_accumulator_value, 1.0f);
  EXPECT_EQ(adagrad.weight_decay_factor, 0.125f);
  EXPECT_EQ(adagrad.warmup_steps, -1);
  EXPECT_TRUE(first.opt_config->stochastic_rounding_float16);
  EXPECT_EQ(std::get<FixedR8Config>(first.comp_config->type).r, 2.0f);

  const SegmentConfig& second = config.entry_config.segments[1];
  EXPECT_EQ(second.dim_size, 1);
  EXPECT_EQ(std::get<ConstantsConfig>(second.init_config->type).constant, 3.0f);
  EXPECT_EQ(std::get<GroupAdagradConfig>(second.opt_config->type).beta, 0.5f);
  EXPECT_FALSE(second.opt_config->stochastic_rounding_float16);
  const auto& one_bit = std::get<OneBitConfig>(second.comp_config->type);
  EXPECT_EQ(one_bit.step_size, 1000);
  EXPECT_EQ(one_bit.amplitude, 0.25f);
  EXPECT_EQ(one_bit.init_scale, 1.0f);
  EXPECT_EQ(one_bit.max_scale, 10000.0f);

  EXPECT_EQ(config.entry_config.entry_type, EntryConfig::Type::kServing);
  EXPECT_EQ(config.initial_capacity, 300u);
  ASSERT_EQ(config.slot_expire_time_config.slot_expire_times.size(), 1u);
  EXPECT_EQ(config.slot_expire_time_config.slot_expire_times[0].slot, 7u);
  EXPECT_EQ(config.slot_expire_time_config.slot_expire_times[0].expire_time, 1u);
  EXPECT_EQ(config.slot_expire_time_config.default_expire_time, 30u);
  EXPECT_EQ(config.type, EmbeddingHashTableConfig::Type::kCuckoo);
  EXPECT_EQ(config.entry_type, EmbeddingHashTableConfig::EntryType::kRaw);
  EXPECT_TRUE(config.enable_feature_eviction);
  EXPECT_EQ(config.feature_evict_every_n_hours, 24);
  EXPECT_TRUE(config.skip_zero_embedding);
  EXPECT_NO_THROW(ValidateTable(config));
}

TEST(ParseEmbeddingHashTableConfig, DefaultsAreTheProtos) {
  const EmbeddingHashTableConfig config = ParseEmbeddingHashTableConfig("");
  EXPECT_TRUE(config.entry_config.segments.empty());
  EXPECT_EQ(config.entry_config.entry_type, EntryConfig::Type::kTraining);
  EXPECT_EQ(config.initial_capacity, 1u);
  EXPECT_EQ(config.slot_expire_time_config.default_expire_time, 36500u);
  EXPECT_EQ(config.type, EmbeddingHashTableConfig::Type::kUnset);
  EXPECT_EQ(config.entry_type, EmbeddingHashTableConfig::EntryType::kPacked);
  EXPECT_FALSE(config.enable_feature_eviction);
  EXPECT_EQ(config.feature_evict_every_n_hours, 240);
  EXPECT_FALSE(config.skip_zero_embedding);
}

// An entry config of one segment whose opt_config is `optimizer`.
OptimizerConfig ParseOptimizer(std::string_view optimizer_hex) {
  std::string segment, entry;
  WireWriter(&segment).Bytes(2, FromHex(optimizer_hex));
  WireWriter(&entry).Bytes(1, segment);
  return *ParseEntryConfig(entry).segments.at(0).opt_config;
}

// In the bytes below, serialized by protobuf, the i-th field of each message holds 10 + i,
// 0.5 * (i + 1) or true; i counts from 0.
TEST(ParseEntryConfig, ReadsEveryFieldOfEveryOptimizer) {
  const auto adagrad = std::get<AdagradConfig>(
      ParseOptimizer("0a15080a150000803f1d0000c03f200d2d00002040300f").type);
  EXPECT_EQ(adagrad.dim_size, 10);
  EXPECT_EQ(adagrad.learning_rate, 1.0f);
  EXPECT_EQ(adagrad.initial_accumulator_value, 1.5f);
  EXPECT_EQ(adagrad.hessian_compression_times, 13);
  EXPECT_EQ(adagrad.weight_decay_factor, 2.5f);
  EXPECT_EQ(adagrad.warmup_steps, 15);

  const auto sgd = std::get<SgdConfig>(ParseOptimizer("1209080a150000803f300c").type);
  EXPECT_EQ(sgd.dim_size, 10);
  EXPECT_EQ(sgd.learning_rate, 1.0f);
  EXPECT_EQ(sgd.warmup_steps, 12);

  const auto ftrl = std::get<FtrlConfig>(
      ParseOptimizer("1a1d080a150000803f1d0000c03f25000000402d0000204035000040403810").type);
  EXPECT_EQ(ftrl.dim_size, 10);
  EXPECT_EQ(ftrl.learning_rate, 1.0f);
  EXPECT_EQ(ftrl.beta, 1.5f);
  EXPECT_EQ(ftrl.initial_accumulator_value, 2.0f);
  EXPECT_EQ(ftrl.l1_regularization_strength, 2.5f);
  EXPECT_EQ(ftrl.l2_regularization_strength, 3.0f);
  EXPECT_EQ(ftrl.warmup_steps, 16);

  const auto dynamic = std::get<DynamicWdAdagradConfig>(
      ParseOptimizer("2a20080a150000803f1d0000c03f200d2d00002040300f380140014d000090405001").type);
  EXPECT_EQ(dynamic.dim_size, 10);
  EXPECT_EQ(dynamic.learning_rate, 1.0f);
  EXPECT_EQ(dynamic.initial_accumulator_value, 1.5f);
  EXPECT_EQ(dynamic.hessian_compression_times, 13);
  EXPECT_EQ(dynamic.weight_decay_factor, 2.5f);
  EXPECT_EQ(dynamic.warmup_steps, 15);
  EXPECT_TRUE(dynamic.decouple_weight_decay);
  EXPECT_TRUE(dynamic.enable_dynamic_wd);
  EXPECT_EQ(dynamic.dynamic_wd_temperature, 4.5f);
  EXPECT_TRUE(dynamic.flip_direction);

  const auto adadelta = std::get<AdadeltaConfig>(
      ParseOptimizer("3218080a150000803f1d0000c03f25000000402d00002040380f").type);
  EXPECT_EQ(adadelta.dim_size, 10);
  EXPECT_EQ(adadelta.learning_rate, 1.0f);
  EXPECT_EQ(adadelta.weight_decay_factor, 1.5f);
  EXPECT_EQ(adadelta.averaging_ratio, 2.0f);
  EXPECT_EQ(adadelta.epsilon, 2.5f);
  EXPECT_EQ(adadelta.warmup_steps, 15);

  const auto adam = std::get<AdamConfig>(
      ParseOptimizer("3a21080a150000803f1d0000c03f250000004028013500004040380145000080404812")
          .type);
  EXPECT_EQ(adam.dim_size, 10);
  EXPECT_EQ(adam.learning_rate, 1.0f);
  EXPECT_EQ(adam.beta1, 1.5f);
  EXPECT_EQ(adam.beta2, 2.0f);
  EXPECT_TRUE(adam.use_beta1_warmup);
  EXPECT_EQ(adam.weight_decay_factor, 3.0f);
  EXPECT_TRUE(adam.use_nesterov);
  EXPECT_EQ(adam.epsilon, 4.0f);
  EXPECT_EQ(adam.warmup_steps, 18);

  const auto amsgrad = std::get<AmsgradConfig>(
      ParseOptimizer("421f080a150000803f1d0000c03f25000000403500002040380145000060404811").type);
  EXPECT_EQ(amsgrad.dim_size, 10);
  EXPECT_EQ(amsgrad.learning_rate, 1.0f);
  EXPECT_EQ(amsgrad.beta1, 1.5f);
  EXPECT_EQ(amsgrad.beta2, 2.0f);
  EXPECT_EQ(amsgrad.weight_decay_factor, 2.5f);
  EXPECT_TRUE(amsgrad.use_nesterov);
  EXPECT_EQ(amsgrad.epsilon, 3.5f);
  EXPECT_EQ(amsgrad.warmup_steps, 17);

  const auto momentum = std::get<MomentumConfig>(
      ParseOptimizer("4a15080a150000803f1d0000c03f20012d00002040300f").type);
  EXPECT_EQ(momentum.dim_size, 10);
  EXPECT_EQ(momentum.learning_rate, 1.0f);
  EXPECT_EQ(momentum.weight_decay_factor, 1.5f);
  EXPECT_TRUE(momentum.use_nesterov);
  EXPECT_EQ(momentum.momentum, 2.5f);
  EXPECT_EQ(momentum.warmup_steps, 15);

  const auto average = std::get<MovingAverageConfig>(ParseOptimizer("5207080a150000803f").type);
  EXPECT_EQ(average.dim_size, 10);
  EXPECT_EQ(average.momentum, 1.0f);

  const auto rmsprop =
      std::get<RmspropConfig>(ParseOptimizer("5a11080a150000803f1d0000c03f2500000040").type);
  EXPECT_EQ(rmsprop.dim_size, 10);
  EXPECT_EQ(rmsprop.learning_rate, 1.0f);
  EXPECT_EQ(rmsprop.weight_decay_factor, 1.5f);
  EXPECT_EQ(rmsprop.momentum, 2.0f);

  const auto rmsprop2 =
      std::get<RmspropV2Config>(ParseOptimizer("6211080a150000803f1d0000c03f2500000040").type);
  EXPECT_EQ(rmsprop2.dim_size, 10);
  EXPECT_EQ(rmsprop2.learning_rate, 1.0f);
  EXPECT_EQ(rmsprop2.weight_decay_factor, 1.5f);
  EXPECT_EQ(rmsprop2.momentum, 2.0f);

  const auto dc = std::get<DcConfig>(ParseOptimizer("6a07080a150000803f").type);
  EXPECT_EQ(dc.dim_size, 10);
  EXPECT_EQ(dc.lambda, 1.0f);

  const auto group_ftrl = std::get<GroupFtrlConfig>(
      ParseOptimizer("721d080a150000803f1d0000c03f25000000402d0000204035000040403810").type);
  EXPECT_EQ(group_ftrl.dim_size, 10);
  EXPECT_EQ(group_ftrl.learning_rate, 1.0f);
  EXPECT_EQ(group_ftrl.beta, 1.5f);
  EXPECT_EQ(group_ftrl.initial_accumulator_value, 2.0f);
  EXPECT_EQ(group_ftrl.l1_regularization_strength, 2.5f);
  EXPECT_EQ(group_ftrl.l2_regularization_strength, 3.0f);
  EXPECT_EQ(group_ftrl.warmup_steps, 16);

  const auto softmax = std::get<BatchSoftmaxConfig>(ParseOptimizer("7a07080a150000803f").type);
  EXPECT_EQ(softmax.dim_size, 10);
  EXPECT_EQ(softmax.learning_rate, 1.0f);

  const auto group_adagrad = std::get<GroupAdagradConfig>(
      ParseOptimizer("82011d080a150000803f1d0000c03f25000000402d0000204035000040403810").type);
  EXPECT_EQ(group_adagrad.dim_size, 10);
  EXPECT_EQ(group_adagrad.learning_rate, 1.0f);
  EXPECT_EQ(group_adagrad.beta, 1.5f);
  EXPECT_EQ(group_adagrad.initial_accumulator_value, 2.0f);
  EXPECT_EQ(group_adagrad.l2_regularization_strength, 2.5f);
  EXPECT_EQ(group_adagrad.weight_decay_factor, 3.0f);
  EXPECT_EQ(group_adagrad.warmup_steps, 16);
}

TEST(ParseEntryConfig, LastMemberOfAOneofWinsAndTheSameIsMerged) {
  // sgd, then adagrad with initial_accumulator_value 1, then adagrad with weight_decay_factor
  // 0.125.
  const auto config = ParseOptimizer("1200 0a051d0000803f 0a052d0000003e");
  const auto& adagrad = std::get<AdagradConfig>(config.type);
  EXPECT_EQ(adagrad.initial_accumulator_value, 1.0f);
  EXPECT_EQ(adagrad.weight_decay_factor, 0.125f);
}

TEST(ParseEntryConfig, KeepsUnsetAndUnknownMembersApart) {
  EXPECT_EQ(ParseOptimizer("").type.index(), 0u);
  EXPECT_EQ(ParseOptimizer("").unknown_member, 0u);
  EXPECT_EQ(ParseOptimizer("ea0300").type.index(), 0u);
  EXPECT_EQ(ParseOptimizer("ea0300").unknown_member, 61u);
}

TEST(ParseEmbeddingHashTableConfig, ThresholdOfTheTable) {
  EXPECT_FALSE(ParseEmbeddingHashTableConfig("").occurrence_threshold.has_value());
  // Serialized by protobuf: field 100.
  EXPECT_EQ(ParseEmbeddingHashTableConfig(FromHex("a00600")).occurrence_threshold, 0u);
  EXPECT_EQ(ParseEmbeddingHashTableConfig(FromHex("a00602")).occurrence_threshold, 2u);
  // A string where a number belongs.
  EXPECT_FALSE(ParseEmbeddingHashTableConfig(FromHex("a2060102")).occurrence_threshold.has_value());
}

TEST(ParseEntryConfig, IgnoresUnknownFieldsAndOtherWireTypes) {
  // Field 9 of a segment is unknown; dim_size comes as a string, then as a number.
  std::string segment, entry;
  WireWriter writer(&segment);
  writer.Varint(9, 1);
  writer.Bytes(7, "four");
  WireWriter(&entry).Bytes(1, segment);
  EXPECT_FALSE(ParseEntryConfig(entry).segments[0].dim_size.has_value());
  writer.Varint(7, 4);
  entry.clear();
  WireWriter(&entry).Bytes(1, segment);
  EXPECT_EQ(ParseEntryConfig(entry).segments[0].dim_size, 4);
}

TEST(ParseConfigs, MalformedBytesNameTheMessage) {
  const std::string bad = FromHex("0a05");
  EXPECT_EQ(ErrorOf([&] { (void)ParseEmbeddingHashTableConfig(bad); }),
            "Unable to parse config. Make sure it is serialized version of "
            "EmbeddingHashTableConfig.");
  EXPECT_EQ(ErrorOf([&] { (void)ParseSlotExpireTimeConfig(bad); }),
            "Unable to parse config. Make sure it is serialized version of SlotExpireTimeConfig.");
  EXPECT_EQ(ErrorOf([&] { (void)ParseSlotOccurrenceThresholdConfig(bad); }),
            "Unable to parse config. Make sure it is serialized version of "
            "SlotOccurrenceThresholdConfig.");
  EXPECT_EQ(ErrorOf([&] {
              (void)ParseMultiEmbeddingHashTableConfig(bad);
            }).rfind("Unable to parse config.", 0),
            0u);
  EXPECT_EQ(ErrorOf([&] { (void)ParseEntryConfig(bad); }).rfind("Unable to parse config.", 0), 0u);
}

TEST(ParseConfigs, MalformedInnerMessagesAreNoticed) {
  // entry_config { segments { opt_config { adagrad { initial_accumulator_value: <3 bytes> } } } }
  EXPECT_THROW((void)ParseEmbeddingHashTableConfig(FromHex("0a0c0a0a12080a061d00008000")),
               std::invalid_argument);
  EXPECT_THROW((void)ParseEmbeddingHashTableConfig(FromHex("2a0180")), std::invalid_argument);
}

TEST(ParseConfigs, DamagedBytesAreParsedOrRefused) {
  int refused = 0;
  ForEachDamage(FromHex(kTableHex), 20000, [&](std::string_view bytes) {
    try {
      const EmbeddingHashTableConfig config = ParseEmbeddingHashTableConfig(bytes);
      EXPECT_FALSE(Describe(config.entry_config).empty());
      ValidateTable(config);
      (void)SlotExpireTimes(config.slot_expire_time_config);
    } catch (const std::invalid_argument& error) {
      ++refused;
      EXPECT_STRNE(error.what(), "");
    }
  });
  EXPECT_GT(refused, 1000);
}

TEST(ParseMultiEmbeddingHashTableConfig, OneConfigPerName) {
  std::string bytes;
  WireWriter writer(&bytes);
  writer.Bytes(1, "slot0");
  writer.Bytes(1, "slot1");
  writer.Bytes(2, FromHex(kTableHex));
  EXPECT_EQ(ErrorOf([&] { (void)ParseMultiEmbeddingHashTableConfig(bytes); }),
            "MultiEmbeddingHashTableConfig must have one config per name. Got 2 names and 1 "
            "configs.");
  writer.Bytes(2, "");
  const auto config = ParseMultiEmbeddingHashTableConfig(bytes);
  EXPECT_EQ(config.names, (std::vector<std::string>{"slot0", "slot1"}));
  ASSERT_EQ(config.configs.size(), 2u);
  EXPECT_EQ(config.configs[0].initial_capacity, 300u);
  EXPECT_EQ(config.configs[1].initial_capacity, 1u);
}

TEST(ValidateTable, NamesWhatIsWrong) {
  EmbeddingHashTableConfig config;
  EXPECT_EQ(ErrorOf([&] { ValidateTable(config); }).rfind("Unknown type of hash table. ", 0), 0u);
  config.type = EmbeddingHashTableConfig::Type::kCuckoo;
  EXPECT_EQ(ErrorOf([&] { ValidateTable(config); }), "no error");
  config.skip_zero_embedding = true;
  EXPECT_EQ(ErrorOf([&] { ValidateTable(config); }),
            "Only EntryConfig_EntryType_SERVING supports skip_zero_embedding!");
  config.entry_config.entry_type = EntryConfig::Type::kServing;
  EXPECT_EQ(ErrorOf([&] { ValidateTable(config); }), "no error");
  config.enable_feature_eviction = true;
  config.feature_evict_every_n_hours = 0;
  EXPECT_EQ(ErrorOf([&] { ValidateTable(config); }),
            "feature_evict_every_n_hours must be positive, got 0.");
  config.enable_feature_eviction = false;
  config.initial_capacity = (std::uint64_t{1} << 32) + 1;
  EXPECT_EQ(ErrorOf([&] { ValidateTable(config); }),
            "initial_capacity must be at most 2^32, the rows a table can hold, got 4294967297.");
  config.initial_capacity = 1;
  config.entry_type = static_cast<EmbeddingHashTableConfig::EntryType>(3);
  EXPECT_EQ(ErrorOf([&] { ValidateTable(config); }),
            "Unknown entry type of hash table: 3. Expected 1 (PACKED) or 2 (RAW).");
}

TEST(Describe, LooksLikeTextFormat) {
  const auto config = ParseEmbeddingHashTableConfig(FromHex(kTableHex));
  EXPECT_EQ(Describe(config.entry_config),
            "segments { init_config { random_uniform { } } opt_config { adagrad { } "
            "stochastic_rounding_float16: true } comp_config { fixed_r8 { } } dim_size: 4 } "
            "segments { init_config { constants { } } opt_config { group_adagrad { } } comp_config "
            "{ one_bit { } } dim_size: 1 } entry_type: SERVING");
}

constexpr std::int64_t IdOf(std::int64_t slot) { return slot << 48 | 5; }

TEST(SlotOf, ReadsFifteenBits) {
  EXPECT_EQ(SlotOf(IdOf(7)), 7u);
  EXPECT_EQ(SlotOf(-1), 0x7FFFu);
  EXPECT_EQ(SlotOf(IdOf(3) | std::int64_t{1} << 62), 0x4003u);
  EXPECT_EQ(SlotOf(static_cast<std::int64_t>(0x8003000000000001u)), 3u);  // The sign is no slot.
}

TEST(SlotExpireTimes, ExpiresAfterTheDaysOfTheSlot) {
  SlotExpireTimeConfig config;
  config.default_expire_time = 14;
  config.slot_expire_times = {{0, 0}, {1, 5}, {2, 6}};
  const SlotExpireTimes times(config);
  EXPECT_EQ(times.days(IdOf(1)), 5u);
  EXPECT_EQ(times.days(IdOf(3)), 14u);
  EXPECT_EQ(times.days(-1), 14u);
  constexpr std::int64_t kWritten = 1234;
  constexpr std::int64_t kDay = 86400;
  const std::int64_t now = kWritten + 5 * kDay + 60;
  EXPECT_TRUE(times.Expired(IdOf(0), kWritten, kWritten));
  EXPECT_TRUE(times.Expired(IdOf(1), kWritten, now));
  EXPECT_FALSE(times.Expired(IdOf(2), kWritten, now));
  EXPECT_FALSE(times.Expired(IdOf(3), kWritten, now));
  EXPECT_TRUE(times.Expired(IdOf(1), kWritten, kWritten + 5 * kDay));
  EXPECT_FALSE(times.Expired(IdOf(1), kWritten, kWritten + 5 * kDay - 1));
}

TEST(SlotExpireTimes, LargestDaysDoNotOverflow) {
  SlotExpireTimeConfig config;
  config.default_expire_time = 0xFFFFFFFFu;
  EXPECT_FALSE(SlotExpireTimes(config).Expired(1, 0, 0xFFFFFFFFll));
}

TEST(SlotExpireTimes, RefusesSlotsThatNoIdHas) {
  SlotExpireTimeConfig config;
  config.slot_expire_times = {{kMaxSlots - 1, 1}};
  EXPECT_EQ(SlotExpireTimes(config).days(-1), 1u);
  config.slot_expire_times = {{kMaxSlots, 1}};
  EXPECT_EQ(ErrorOf([&] { (void)SlotExpireTimes(config); }),
            "Slot 32768 is out of range: slots lie between 0 and 32767.");
}

TEST(SlotThresholds, DefaultAndPerSlot) {
  // Serialized by protobuf: slot 9 has 15, the default is 2.
  const SlotThresholds thresholds(ParseSlotOccurrenceThresholdConfig(FromHex("0a040809100f1002")));
  EXPECT_EQ(thresholds.threshold(IdOf(9)), 15u);
  EXPECT_EQ(thresholds.threshold(IdOf(8)), 2u);
  EXPECT_EQ(thresholds.threshold(IdOf(10)), 2u);
  EXPECT_EQ(SlotThresholds(ParseSlotOccurrenceThresholdConfig("")).threshold(IdOf(9)), 0u);
}

}  // namespace
}  // namespace monolith::core
