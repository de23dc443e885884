// What the settings of a table mean: rules, per-slot values, and names for error messages.
#include <stdexcept>
#include <string>

#include "core/table/table_config.h"

namespace monolith::core {
namespace {

// Names of the oneofs' members, in the order of the variants.
constexpr const char* kOptimizerNames[] = {"",
                                           "sgd",
                                           "adagrad",
                                           "dynamic_wd_adagrad",
                                           "ftrl",
                                           "group_ftrl",
                                           "group_adagrad",
                                           "adadelta",
                                           "adam",
                                           "amsgrad",
                                           "momentum",
                                           "moving_average",
                                           "batch_softmax",
                                           "rmsprop",
                                           "rmspropv2",
                                           "dc"};
constexpr const char* kInitializerNames[] = {"", "zeros", "ones", "constants", "random_uniform"};
constexpr const char* kCompressorNames[] = {"", "fp32", "fp16", "fixed_r8", "one_bit"};

static_assert(std::size(kOptimizerNames) == std::variant_size_v<decltype(OptimizerConfig::type)>);
static_assert(std::size(kInitializerNames) ==
              std::variant_size_v<decltype(InitializerConfig::type)>);
static_assert(std::size(kCompressorNames) == std::variant_size_v<decltype(CompressorConfig::type)>);

// "adagrad { dim_size: 4 }", or "" when no member is set.
template <typename Variant>
std::string DescribeMember(const Variant& variant, const char* const* names,
                           std::uint32_t unknown_member) {
  std::string text;
  std::visit(
      [&](const auto& member) {
        if constexpr (!std::is_same_v<std::decay_t<decltype(member)>, std::monostate>) {
          text = std::string(names[variant.index()]) + " { ";
          if (member.dim_size != 0) text += "dim_size: " + std::to_string(member.dim_size) + " ";
          text += "}";
        }
      },
      variant);
  if (text.empty() && unknown_member != 0) {
    text = "unknown member " + std::to_string(unknown_member);
  }
  return text;
}

template <typename Config>
std::string Field(const char* name, const std::optional<Config>& config) {
  if (!config.has_value()) return "";
  const std::string text = Describe(*config);
  return std::string(name) + " { " + text + (text.empty() ? "} " : " } ");
}

}  // namespace

std::string Describe(const OptimizerConfig& config) {
  std::string text = DescribeMember(config.type, kOptimizerNames, config.unknown_member);
  if (config.stochastic_rounding_float16) {
    text += std::string(text.empty() ? "" : " ") + "stochastic_rounding_float16: true";
  }
  return text;
}

std::string Describe(const InitializerConfig& config) {
  return DescribeMember(config.type, kInitializerNames, config.unknown_member);
}

std::string Describe(const CompressorConfig& config) {
  return DescribeMember(config.type, kCompressorNames, config.unknown_member);
}

std::string Describe(const EntryConfig& config) {
  std::string text;
  for (const SegmentConfig& segment : config.segments) {
    text += "segments { " + Field("init_config", segment.init_config) +
            Field("opt_config", segment.opt_config) + Field("comp_config", segment.comp_config);
    if (segment.dim_size.has_value()) {
      text += "dim_size: " + std::to_string(*segment.dim_size) + " ";
    }
    text += "} ";
  }
  text += "entry_type: ";
  switch (config.entry_type) {
    case EntryConfig::Type::kUnknown:
      return text + "UNKNOWN";
    case EntryConfig::Type::kTraining:
      return text + "TRAINING";
    case EntryConfig::Type::kServing:
      return text + "SERVING";
  }
  return text + std::to_string(static_cast<std::int32_t>(config.entry_type));
}

void ValidateTable(const EmbeddingHashTableConfig& config) {
  if (config.type == EmbeddingHashTableConfig::Type::kUnset) {
    throw std::invalid_argument("Unknown type of hash table. Expected `cuckoo`, got a config of " +
                                Describe(config.entry_config) + " without a known type.");
  }
  if (config.entry_type != EmbeddingHashTableConfig::EntryType::kPacked &&
      config.entry_type != EmbeddingHashTableConfig::EntryType::kRaw) {
    throw std::invalid_argument("Unknown entry type of hash table: " +
                                std::to_string(static_cast<std::int32_t>(config.entry_type)) +
                                ". Expected 1 (PACKED) or 2 (RAW).");
  }
  if (config.skip_zero_embedding && config.entry_config.entry_type != EntryConfig::Type::kServing) {
    throw std::invalid_argument("Only EntryConfig_EntryType_SERVING supports skip_zero_embedding!");
  }
  constexpr std::uint64_t kMaxRows = std::uint64_t{1} << 32;
  if (config.initial_capacity > kMaxRows) {
    throw std::invalid_argument(
        "initial_capacity must be at most 2^32, the rows a table can hold, got " +
        std::to_string(config.initial_capacity) + ".");
  }
  if (config.enable_feature_eviction && config.feature_evict_every_n_hours <= 0) {
    throw std::invalid_argument("feature_evict_every_n_hours must be positive, got " +
                                std::to_string(config.feature_evict_every_n_hours) + ".");
  }
}

void SlotValues::Set(std::uint32_t slot, std::uint32_t value) {
  if (slot >= kMaxSlots) {
    throw std::invalid_argument("Slot " + std::to_string(slot) +
                                " is out of range: slots lie between 0 and " +
                                std::to_string(kMaxSlots - 1) + ".");
  }
  if (slot >= values_.size()) values_.resize(slot + 1, default_);
  values_[slot] = value;
}

SlotExpireTimes::SlotExpireTimes(const SlotExpireTimeConfig& config)
    : days_(config.default_expire_time) {
  for (const auto& entry : config.slot_expire_times) days_.Set(entry.slot, entry.expire_time);
}

SlotThresholds::SlotThresholds(const SlotOccurrenceThresholdConfig& config)
    : thresholds_(config.default_occurrence_threshold) {
  for (const auto& entry : config.slot_occurrence_thresholds) {
    thresholds_.Set(entry.slot, entry.occurrence_threshold);
  }
}

}  // namespace monolith::core
