#include "core/table/table_config.h"

#include <stdexcept>
#include <string>

#include "core/wire/wire.h"

namespace monolith::core {
namespace {

// MergeField(field, &message) takes over one field of a message; it returns false if a message
// inside it is malformed. Fields that a message does not have are ignored.

template <typename Message>
bool Merge(std::string_view bytes, Message* message);

template <typename Message>
bool MergeMessage(const WireField& field, Message* message) {
  return field.type != WireType::kBytes || Merge(field.bytes, message);
}

template <typename Message>
bool MergeOptional(const WireField& field, std::optional<Message>* message) {
  if (field.type != WireType::kBytes) return true;
  if (!message->has_value()) message->emplace();
  return Merge(field.bytes, &**message);
}

template <typename Message>
bool MergeRepeated(const WireField& field, std::vector<Message>* messages) {
  if (field.type != WireType::kBytes) return true;
  return Merge(field.bytes, &messages->emplace_back());
}

// A member of a oneof: the last one set wins, the same one set twice is merged.
template <typename Member, typename Variant>
bool MergeMember(const WireField& field, Variant* variant) {
  if (field.type != WireType::kBytes) return true;
  if (!std::holds_alternative<Member>(*variant)) variant->template emplace<Member>();
  return Merge(field.bytes, &std::get<Member>(*variant));
}

template <typename Oneof>
bool NoteUnknownMember(const WireField& field, Oneof* config) {
  if (field.type == WireType::kBytes) config->unknown_member = field.number;
  return true;
}

template <typename Scalar>
struct Place {
  std::uint32_t number;
  Scalar* scalar;
};
template <typename Scalar>
Place<Scalar> At(std::uint32_t number, Scalar* scalar) {
  return {number, scalar};
}

// Stores the field in the place of its number; returns whether there is one. Another wire type than
// the scalar's counts as an unknown field.
template <typename... Scalars>
bool TakeScalar(const WireField& field, Place<Scalars>... places) {
  return ((field.number == places.number && (ReadScalar(field, places.scalar), true)) || ...);
}

template <typename Scalar>
bool Take(const WireField& field, Scalar* scalar) {
  ReadScalar(field, scalar);
  return true;
}

bool MergeField(const WireField& field, SgdConfig* config) {
  TakeScalar(field, At(1, &config->dim_size), At(2, &config->learning_rate),
             At(6, &config->warmup_steps));
  return true;
}

// Fields 1 to 6 of adagrad and of its dynamic sibling.
template <typename Config>
bool MergeAdagradField(const WireField& field, Config* config) {
  TakeScalar(field, At(1, &config->dim_size), At(2, &config->learning_rate),
             At(3, &config->initial_accumulator_value), At(4, &config->hessian_compression_times),
             At(5, &config->weight_decay_factor), At(6, &config->warmup_steps));
  return true;
}

bool MergeField(const WireField& field, AdagradConfig* config) {
  return MergeAdagradField(field, config);
}

bool MergeField(const WireField& field, DynamicWdAdagradConfig* config) {
  return TakeScalar(field, At(7, &config->decouple_weight_decay), At(8, &config->enable_dynamic_wd),
                    At(9, &config->dynamic_wd_temperature), At(10, &config->flip_direction)) ||
         MergeAdagradField(field, config);
}

template <typename Config>
bool MergeFtrlField(const WireField& field, Config* config) {
  TakeScalar(field, At(1, &config->dim_size), At(2, &config->learning_rate), At(3, &config->beta),
             At(4, &config->initial_accumulator_value), At(5, &config->l1_regularization_strength),
             At(6, &config->l2_regularization_strength), At(7, &config->warmup_steps));
  return true;
}

bool MergeField(const WireField& field, FtrlConfig* config) {
  return MergeFtrlField(field, config);
}
bool MergeField(const WireField& field, GroupFtrlConfig* config) {
  return MergeFtrlField(field, config);
}

bool MergeField(const WireField& field, GroupAdagradConfig* config) {
  TakeScalar(field, At(1, &config->dim_size), At(2, &config->learning_rate), At(3, &config->beta),
             At(4, &config->initial_accumulator_value), At(5, &config->l2_regularization_strength),
             At(6, &config->weight_decay_factor), At(7, &config->warmup_steps));
  return true;
}

bool MergeField(const WireField& field, AdadeltaConfig* config) {
  TakeScalar(field, At(1, &config->dim_size), At(2, &config->learning_rate),
             At(3, &config->weight_decay_factor), At(4, &config->averaging_ratio),
             At(5, &config->epsilon), At(7, &config->warmup_steps));
  return true;
}

// All fields but 5, which amsgrad does not have.
template <typename Config>
bool MergeAdamField(const WireField& field, Config* config) {
  TakeScalar(field, At(1, &config->dim_size), At(2, &config->learning_rate), At(3, &config->beta1),
             At(4, &config->beta2), At(6, &config->weight_decay_factor),
             At(7, &config->use_nesterov), At(8, &config->epsilon), At(9, &config->warmup_steps));
  return true;
}

bool MergeField(const WireField& field, AdamConfig* config) {
  return field.number == 5 ? Take(field, &config->use_beta1_warmup) : MergeAdamField(field, config);
}
bool MergeField(const WireField& field, AmsgradConfig* config) {
  return MergeAdamField(field, config);
}

bool MergeField(const WireField& field, MomentumConfig* config) {
  TakeScalar(field, At(1, &config->dim_size), At(2, &config->learning_rate),
             At(3, &config->weight_decay_factor), At(4, &config->use_nesterov),
             At(5, &config->momentum), At(6, &config->warmup_steps));
  return true;
}

bool MergeField(const WireField& field, MovingAverageConfig* config) {
  TakeScalar(field, At(1, &config->dim_size), At(2, &config->momentum));
  return true;
}

bool MergeField(const WireField& field, BatchSoftmaxConfig* config) {
  TakeScalar(field, At(1, &config->dim_size), At(2, &config->learning_rate));
  return true;
}

template <typename Config>
bool MergeRmspropField(const WireField& field, Config* config) {
  TakeScalar(field, At(1, &config->dim_size), At(2, &config->learning_rate),
             At(3, &config->weight_decay_factor), At(4, &config->momentum));
  return true;
}

bool MergeField(const WireField& field, RmspropConfig* config) {
  return MergeRmspropField(field, config);
}
bool MergeField(const WireField& field, RmspropV2Config* config) {
  return MergeRmspropField(field, config);
}

bool MergeField(const WireField& field, DcConfig* config) {
  TakeScalar(field, At(1, &config->dim_size), At(2, &config->lambda));
  return true;
}

bool MergeField(const WireField& field, OptimizerConfig* config) {
  switch (field.number) {
    case 1:
      return MergeMember<AdagradConfig>(field, &config->type);
    case 2:
      return MergeMember<SgdConfig>(field, &config->type);
    case 3:
      return MergeMember<FtrlConfig>(field, &config->type);
    case 4:
      return Take(field, &config->stochastic_rounding_float16);
    case 5:
      return MergeMember<DynamicWdAdagradConfig>(field, &config->type);
    case 6:
      return MergeMember<AdadeltaConfig>(field, &config->type);
    case 7:
      return MergeMember<AdamConfig>(field, &config->type);
    case 8:
      return MergeMember<AmsgradConfig>(field, &config->type);
    case 9:
      return MergeMember<MomentumConfig>(field, &config->type);
    case 10:
      return MergeMember<MovingAverageConfig>(field, &config->type);
    case 11:
      return MergeMember<RmspropConfig>(field, &config->type);
    case 12:
      return MergeMember<RmspropV2Config>(field, &config->type);
    case 13:
      return MergeMember<DcConfig>(field, &config->type);
    case 14:
      return MergeMember<GroupFtrlConfig>(field, &config->type);
    case 15:
      return MergeMember<BatchSoftmaxConfig>(field, &config->type);
    case 16:
      return MergeMember<GroupAdagradConfig>(field, &config->type);
    default:
      return NoteUnknownMember(field, config);
  }
}

template <typename Config>
bool MergeDimField(const WireField& field, Config* config) {
  return field.number != 1 || Take(field, &config->dim_size);
}

bool MergeField(const WireField& field, ZerosConfig* config) {
  return MergeDimField(field, config);
}
bool MergeField(const WireField& field, OnesConfig* config) { return MergeDimField(field, config); }

bool MergeField(const WireField& field, ConstantsConfig* config) {
  return field.number == 2 ? Take(field, &config->constant) : MergeDimField(field, config);
}

bool MergeField(const WireField& field, RandomUniformConfig* config) {
  return TakeScalar(field, At(2, &config->minval), At(3, &config->maxval)) ||
         MergeDimField(field, config);
}

bool MergeField(const WireField& field, InitializerConfig* config) {
  switch (field.number) {
    case 1:
      return MergeMember<ZerosConfig>(field, &config->type);
    case 2:
      return MergeMember<RandomUniformConfig>(field, &config->type);
    case 3:
      return MergeMember<OnesConfig>(field, &config->type);
    case 15:
      return MergeMember<ConstantsConfig>(field, &config->type);
    default:
      return NoteUnknownMember(field, config);
  }
}

bool MergeField(const WireField& field, Fp32Config* config) { return MergeDimField(field, config); }
bool MergeField(const WireField& field, Fp16Config* config) { return MergeDimField(field, config); }

bool MergeField(const WireField& field, FixedR8Config* config) {
  return field.number == 2 ? Take(field, &config->r) : MergeDimField(field, config);
}

bool MergeField(const WireField& field, OneBitConfig* config) {
  return TakeScalar(field, At(2, &config->step_size), At(3, &config->init_scale),
                    At(4, &config->max_scale), At(5, &config->amplitude)) ||
         MergeDimField(field, config);
}

bool MergeField(const WireField& field, CompressorConfig* config) {
  switch (field.number) {
    case 1:
      return MergeMember<Fp32Config>(field, &config->type);
    case 2:
      return MergeMember<Fp16Config>(field, &config->type);
    case 3:
      return MergeMember<FixedR8Config>(field, &config->type);
    case 4:
      return MergeMember<OneBitConfig>(field, &config->type);
    default:
      return NoteUnknownMember(field, config);
  }
}

bool MergeField(const WireField& field, SegmentConfig* config) {
  switch (field.number) {
    case 1:
      return MergeOptional(field, &config->init_config);
    case 2:
      return MergeOptional(field, &config->opt_config);
    case 3:
      return MergeOptional(field, &config->comp_config);
    case 7: {
      std::int32_t dim_size = 0;
      if (ReadScalar(field, &dim_size)) config->dim_size = dim_size;
      return true;
    }
    default:
      return true;
  }
}

template <typename Enum>
bool TakeEnum(const WireField& field, Enum* target) {
  std::int32_t number = 0;
  if (ReadScalar(field, &number)) *target = static_cast<Enum>(number);
  return true;
}

bool MergeField(const WireField& field, EntryConfig* config) {
  switch (field.number) {
    case 1:
      return MergeRepeated(field, &config->segments);
    case 2:
      return TakeEnum(field, &config->entry_type);
    case 100:
      return TakeEnum(field, &config->storage);
    default:
      return true;
  }
}

bool MergeField(const WireField& field, SlotExpireTimeConfig::SlotExpireTime* config) {
  TakeScalar(field, At(1, &config->slot), At(2, &config->expire_time));
  return true;
}

bool MergeField(const WireField& field, SlotExpireTimeConfig* config) {
  switch (field.number) {
    case 1:
      return MergeRepeated(field, &config->slot_expire_times);
    case 2:
      return Take(field, &config->default_expire_time);
    default:
      return true;
  }
}

struct EmptyMessage {};
bool MergeField(const WireField&, EmptyMessage*) { return true; }

bool MergeField(const WireField& field, EmbeddingHashTableConfig* config) {
  switch (field.number) {
    case 1:
      return MergeMessage(field, &config->entry_config);
    case 2:
      return Take(field, &config->initial_capacity);
    case 3:
      return MergeMessage(field, &config->slot_expire_time_config);
    case 5: {
      if (field.type == WireType::kBytes) config->type = EmbeddingHashTableConfig::Type::kCuckoo;
      EmptyMessage cuckoo;
      return MergeMessage(field, &cuckoo);
    }
    case 6:
      return TakeEnum(field, &config->entry_type);
    case 7:
      return Take(field, &config->enable_feature_eviction);
    case 8:
      return Take(field, &config->feature_evict_every_n_hours);
    case 10:
      return Take(field, &config->skip_zero_embedding);
    case 100: {
      std::uint32_t threshold = 0;
      if (ReadScalar(field, &threshold)) config->occurrence_threshold = threshold;
      return true;
    }
    default:
      return true;
  }
}

bool MergeField(const WireField& field, MultiEmbeddingHashTableConfig* config) {
  switch (field.number) {
    case 1:
      if (field.type == WireType::kBytes) config->names.emplace_back(field.bytes);
      return true;
    case 2:
      return MergeRepeated(field, &config->configs);
    default:
      return true;
  }
}

bool MergeField(const WireField& field,
                SlotOccurrenceThresholdConfig::SlotOccurrenceThreshold* config) {
  TakeScalar(field, At(1, &config->slot), At(2, &config->occurrence_threshold));
  return true;
}

bool MergeField(const WireField& field, SlotOccurrenceThresholdConfig* config) {
  switch (field.number) {
    case 1:
      return MergeRepeated(field, &config->slot_occurrence_thresholds);
    case 2:
      return Take(field, &config->default_occurrence_threshold);
    default:
      return true;
  }
}

template <typename Message>
bool Merge(std::string_view bytes, Message* message) {
  WireReader reader(bytes);
  for (WireField field; reader.Next(&field);) {
    if (!MergeField(field, message)) return false;
  }
  return reader.ok();
}

template <typename Message>
Message ParseOrThrow(std::string_view bytes, const char* error) {
  Message message;
  if (!Merge(bytes, &message)) throw std::invalid_argument(error);
  return message;
}

}  // namespace

EmbeddingHashTableConfig ParseEmbeddingHashTableConfig(std::string_view bytes) {
  return ParseOrThrow<EmbeddingHashTableConfig>(
      bytes,
      "Unable to parse config. Make sure it is serialized version of EmbeddingHashTableConfig.");
}

MultiEmbeddingHashTableConfig ParseMultiEmbeddingHashTableConfig(std::string_view bytes) {
  auto config =
      ParseOrThrow<MultiEmbeddingHashTableConfig>(bytes,
                                                  "Unable to parse config. Make sure it is "
                                                  "serialized version of "
                                                  "MultiEmbeddingHashTableConfig.");
  if (config.names.size() != config.configs.size()) {
    throw std::invalid_argument(
        "MultiEmbeddingHashTableConfig must have one config per name. Got " +
        std::to_string(config.names.size()) + " names and " +
        std::to_string(config.configs.size()) + " configs.");
  }
  return config;
}

SlotExpireTimeConfig ParseSlotExpireTimeConfig(std::string_view bytes) {
  return ParseOrThrow<SlotExpireTimeConfig>(
      bytes, "Unable to parse config. Make sure it is serialized version of SlotExpireTimeConfig.");
}

SlotOccurrenceThresholdConfig ParseSlotOccurrenceThresholdConfig(std::string_view bytes) {
  return ParseOrThrow<SlotOccurrenceThresholdConfig>(
      bytes,
      "Unable to parse config. Make sure it is serialized version of "
      "SlotOccurrenceThresholdConfig.");
}

EntryConfig ParseEntryConfig(std::string_view bytes) {
  return ParseOrThrow<EntryConfig>(
      bytes, "Unable to parse config. Make sure it is serialized version of EntryConfig.");
}

}  // namespace monolith::core
