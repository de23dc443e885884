// What a table is made of, read from the serialized protobufs that Python hands over.
//
// The structs mirror the messages of embedding_hash_table.proto and the three files it imports,
// with the same defaults. Reading them checks the wire format only; the makers (MakeEntryAccessor,
// MakeOptimizer, ...) and ValidateTable judge what the settings mean. All throw
// std::invalid_argument.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace monolith::core {

// `dim_size` of the structs below counts only where the segment itself leaves it out.
// `learning_rate`, `warmup_steps`, `hessian_compression_times` and `use_beta1_warmup` are for
// Python's learning-rate functions: the rates of each step are passed to Optimize.
struct SgdConfig {
  std::int32_t dim_size = 0;
  float learning_rate = 0.01f;
  std::int64_t warmup_steps = 0;
};

struct AdagradConfig {
  std::int32_t dim_size = 0;
  float learning_rate = 0.001f;
  float initial_accumulator_value = 0.1f;
  std::int32_t hessian_compression_times = 1;
  float weight_decay_factor = 0.0f;
  std::int64_t warmup_steps = 0;
};

struct DynamicWdAdagradConfig {
  std::int32_t dim_size = 0;
  float learning_rate = 0.001f;
  float initial_accumulator_value = 0.1f;
  std::int32_t hessian_compression_times = 1;
  float weight_decay_factor = 0.0f;
  std::int64_t warmup_steps = 0;
  bool decouple_weight_decay = false;
  bool enable_dynamic_wd = false;
  float dynamic_wd_temperature = 1.0f;
  bool flip_direction = false;
};

struct FtrlConfig {
  std::int32_t dim_size = 0;
  float learning_rate = 0.01f;
  float beta = 0.0f;
  float initial_accumulator_value = 0.1f;
  float l1_regularization_strength = 0.0f;
  float l2_regularization_strength = 0.0f;
  std::int64_t warmup_steps = 0;
};

struct GroupFtrlConfig {
  std::int32_t dim_size = 0;
  float learning_rate = 0.01f;
  float beta = 1.0f;
  float initial_accumulator_value = 0.0f;
  float l1_regularization_strength = 0.0f;
  float l2_regularization_strength = 0.0f;
  std::int64_t warmup_steps = 0;
};

struct GroupAdagradConfig {
  std::int32_t dim_size = 0;
  float learning_rate = 0.01f;
  float beta = 0.0f;
  float initial_accumulator_value = 0.1f;
  float l2_regularization_strength = 0.0f;
  float weight_decay_factor = 0.0f;
  std::int64_t warmup_steps = 0;
};

struct AdadeltaConfig {
  std::int32_t dim_size = 0;
  float learning_rate = 0.01f;
  float weight_decay_factor = 0.0f;
  float averaging_ratio = 0.9f;
  float epsilon = 0.01f;
  std::int64_t warmup_steps = 0;
};

struct AdamConfig {
  std::int32_t dim_size = 0;
  float learning_rate = 0.01f;
  float beta1 = 0.9f;
  float beta2 = 0.99f;
  bool use_beta1_warmup = false;
  float weight_decay_factor = 0.0f;
  bool use_nesterov = false;
  float epsilon = 0.01f;
  std::int64_t warmup_steps = 0;
};

struct AmsgradConfig {
  std::int32_t dim_size = 0;
  float learning_rate = 0.01f;
  float beta1 = 0.9f;
  float beta2 = 0.99f;
  float weight_decay_factor = 0.0f;
  bool use_nesterov = false;
  float epsilon = 0.01f;
  std::int64_t warmup_steps = 0;
};

struct MomentumConfig {
  std::int32_t dim_size = 0;
  float learning_rate = 0.01f;
  float weight_decay_factor = 0.0f;
  bool use_nesterov = false;
  float momentum = 0.9f;
  std::int64_t warmup_steps = 0;
};

struct MovingAverageConfig {
  std::int32_t dim_size = 0;
  float momentum = 0.9f;
};

struct BatchSoftmaxConfig {
  std::int32_t dim_size = 0;
  float learning_rate = 0.1f;
};

struct RmspropConfig {
  std::int32_t dim_size = 0;
  float learning_rate = 0.01f;
  float weight_decay_factor = 0.0f;
  float momentum = 0.9f;
};

struct RmspropV2Config {
  std::int32_t dim_size = 0;
  float learning_rate = 0.01f;
  float weight_decay_factor = 0.0f;
  float momentum = 0.9f;
};

struct DcConfig {
  std::int32_t dim_size = 0;
  float lambda = 0.0f;
};

struct OptimizerConfig {
  // std::monostate: no member of the oneof is set.
  std::variant<std::monostate, SgdConfig, AdagradConfig, DynamicWdAdagradConfig, FtrlConfig,
               GroupFtrlConfig, GroupAdagradConfig, AdadeltaConfig, AdamConfig, AmsgradConfig,
               MomentumConfig, MovingAverageConfig, BatchSoftmaxConfig, RmspropConfig,
               RmspropV2Config, DcConfig>
      type;
  bool stochastic_rounding_float16 = false;
  std::uint32_t unknown_member = 0;  // Field number of a member that this version does not know.
};

struct ZerosConfig {
  std::int32_t dim_size = 0;
};
struct OnesConfig {
  std::int32_t dim_size = 0;
};
struct ConstantsConfig {
  std::int32_t dim_size = 0;
  float constant = 0.0f;
};
struct RandomUniformConfig {
  std::int32_t dim_size = 0;
  float minval = -0.05f;
  float maxval = 0.05f;
};

struct InitializerConfig {
  std::variant<std::monostate, ZerosConfig, OnesConfig, ConstantsConfig, RandomUniformConfig> type;
  std::uint32_t unknown_member = 0;
};

struct Fp32Config {
  std::int32_t dim_size = 0;
};
struct Fp16Config {
  std::int32_t dim_size = 0;
};
struct FixedR8Config {
  std::int32_t dim_size = 0;
  float r = 1.0f;
};
struct OneBitConfig {
  std::int32_t dim_size = 0;
  std::int64_t step_size = 200;
  float init_scale = 1.0f;
  float max_scale = 10000.0f;
  float amplitude = 0.1f;
};

struct CompressorConfig {
  std::variant<std::monostate, Fp32Config, Fp16Config, FixedR8Config, OneBitConfig> type;
  std::uint32_t unknown_member = 0;
};

// One part of a row, with its own initializer, optimizer and compressor.
struct SegmentConfig {
  std::optional<InitializerConfig> init_config;
  std::optional<OptimizerConfig> opt_config;
  std::optional<CompressorConfig> comp_config;
  std::optional<std::int32_t> dim_size;  // Overrides the dim_size of the three.
};

struct EntryConfig {
  // Other numbers are kept as they came, so that the error can name them.
  enum class Type : std::int32_t { kUnknown = 0, kTraining = 1, kServing = 2 };
  enum class Storage : std::int32_t { kFloat32 = 0, kFloat16 = 1, kInt8 = 2 };

  std::vector<SegmentConfig> segments;
  Type entry_type = Type::kTraining;
  Storage storage = Storage::kFloat32;  // Of the values of training rows.
};

struct SlotExpireTimeConfig {
  struct SlotExpireTime {
    std::uint32_t slot = 0;
    std::uint32_t expire_time = 0;  // Days.
  };

  std::vector<SlotExpireTime> slot_expire_times;
  std::uint32_t default_expire_time = 36500;  // Days.
};

struct EmbeddingHashTableConfig {
  enum class Type : std::uint8_t { kUnset, kCuckoo };
  enum class EntryType : std::int32_t { kPacked = 1, kRaw = 2 };

  EntryConfig entry_config;
  std::uint64_t initial_capacity = 1;
  SlotExpireTimeConfig slot_expire_time_config;
  Type type = Type::kUnset;
  EntryType entry_type = EntryType::kPacked;
  bool enable_feature_eviction = false;
  std::int32_t feature_evict_every_n_hours = 240;
  bool skip_zero_embedding = false;
  // In place of that of the id's slot; ids of the table are then counted apart from all others.
  std::optional<std::uint32_t> occurrence_threshold;
};

struct MultiEmbeddingHashTableConfig {
  std::vector<std::string> names;
  std::vector<EmbeddingHashTableConfig> configs;  // As many as names.
};

struct SlotOccurrenceThresholdConfig {
  struct SlotOccurrenceThreshold {
    std::uint32_t slot = 0;
    std::uint32_t occurrence_threshold = 0;
  };

  std::vector<SlotOccurrenceThreshold> slot_occurrence_thresholds;
  std::uint32_t default_occurrence_threshold = 0;
};

// Each throws std::invalid_argument if the bytes are not such a message.
[[nodiscard]] EmbeddingHashTableConfig ParseEmbeddingHashTableConfig(std::string_view bytes);
[[nodiscard]] MultiEmbeddingHashTableConfig ParseMultiEmbeddingHashTableConfig(
    std::string_view bytes);
[[nodiscard]] SlotExpireTimeConfig ParseSlotExpireTimeConfig(std::string_view bytes);
[[nodiscard]] SlotOccurrenceThresholdConfig ParseSlotOccurrenceThresholdConfig(
    std::string_view bytes);
[[nodiscard]] EntryConfig ParseEntryConfig(std::string_view bytes);

// Throws std::invalid_argument if the settings of the table as a whole cannot be served: no table
// type, an unknown entry_type, zero vectors skipped in a table that is not for serving, a
// non-positive eviction period. The entry config is judged by MakeEntryAccessor.
void ValidateTable(const EmbeddingHashTableConfig& config);

// Short text for error messages, in the manner of protobuf's text format. Names members and
// dimensions, not every number.
[[nodiscard]] std::string Describe(const OptimizerConfig& config);
[[nodiscard]] std::string Describe(const InitializerConfig& config);
[[nodiscard]] std::string Describe(const CompressorConfig& config);
[[nodiscard]] std::string Describe(const EntryConfig& config);

// Slot of an id in the v2 layout.
inline constexpr std::uint32_t kMaxSlots = 1u << 15;
[[nodiscard]] constexpr std::uint32_t SlotOf(std::int64_t id) {
  return static_cast<std::uint32_t>(static_cast<std::uint64_t>(id) >> 48) & (kMaxSlots - 1);
}

// A number per slot with a default for slots that are not listed. Once filled: any thread.
class SlotValues {
 public:
  explicit SlotValues(std::uint32_t default_value) : default_(default_value) {}

  // The last value set for a slot wins. Throws std::invalid_argument beyond kMaxSlots.
  void Set(std::uint32_t slot, std::uint32_t value);

  [[nodiscard]] std::uint32_t at(std::uint32_t slot) const {
    return slot < values_.size() ? values_[slot] : default_;
  }

 private:
  std::uint32_t default_;
  std::vector<std::uint32_t> values_;  // Up to the greatest slot that was set.
};

// How long the rows of each slot live. Immutable; any thread.
class SlotExpireTimes {
 public:
  explicit SlotExpireTimes(const SlotExpireTimeConfig& config);

  [[nodiscard]] std::uint32_t days(std::int64_t id) const { return days_.at(SlotOf(id)); }

  // True when at least `days(id)` days have passed between the row's last update and the table's.
  [[nodiscard]] bool Expired(std::int64_t id, std::int64_t last_update_sec,
                             std::int64_t max_update_sec) const {
    return max_update_sec - last_update_sec >= std::int64_t{days(id)} * 86400;
  }

 private:
  SlotValues days_;
};

// How often an id of each slot has to be seen before it gets a row. Immutable; any thread.
class SlotThresholds {
 public:
  explicit SlotThresholds(const SlotOccurrenceThresholdConfig& config);

  [[nodiscard]] std::uint32_t threshold(std::int64_t id) const {
    return thresholds_.at(SlotOf(id));
  }

 private:
  SlotValues thresholds_;
};

}  // namespace monolith::core
