#include "core/row/entry_accessor.h"

#include <cstring>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "core/row/compact_accessor.h"
#include "core/row/compressor.h"
#include "core/row/segments.h"
#include "core/system/scratch_floats.h"

namespace monolith::core {
namespace {

// Rows start 8-byte aligned with their floats.
float* Values(std::byte* row) { return reinterpret_cast<float*>(row); }
const float* Values(const std::byte* row) { return reinterpret_cast<const float*>(row); }

// Values as they are: plain floats.
class TrainingEntryAccessor final : public EntryAccessor {
 public:
  explicit TrainingEntryAccessor(Segments segments)
      : segments_(std::move(segments)),
        dim_(segments_.dim()),
        raw_(segments_.are_read_as_they_are()) {}

  [[nodiscard]] std::size_t row_bytes() const override { return segments_.row_bytes(); }
  [[nodiscard]] std::size_t value_bytes() const override { return dim_ * sizeof(float); }
  [[nodiscard]] std::size_t dim() const override { return dim_; }
  [[nodiscard]] std::size_t num_segments() const override { return segments_.size(); }
  [[nodiscard]] bool values_are_raw() const override { return raw_; }
  [[nodiscard]] std::string DebugString() const override { return segments_.DebugString(); }

  void Init(std::byte* row) const override {
    for (const Segment& segment : segments_) {
      segment.initializer->Initialize(Values(row) + segment.value_offset);
    }
    segments_.InitStates(row);
  }

  void Read(const std::byte* row, float* values) const override {
    if (raw_) {
      std::memcpy(values, row, dim_ * sizeof(float));
      return;
    }
    for (const Segment& segment : segments_) {
      const float* from = Values(row) + segment.value_offset;
      float* to = values + segment.value_offset;
      if (segment.retriever == nullptr) {
        std::memcpy(to, from, segment.dim * sizeof(float));
      } else {
        segment.retriever->Forward(from, to);
      }
    }
  }

  void Assign(const float* values, std::byte* row) const override {
    std::memcpy(row, values, dim_ * sizeof(float));
  }

  void AssignAdd(const float* values, std::byte* row) const override {
    AddFloats(dim_, values, Values(row));
  }

  void Optimize(std::size_t n, std::byte* const* rows, const float* const* grads,
                const float* learning_rates, std::int64_t global_step) const override {
    for (std::size_t i = 0; i < segments_.size(); ++i) {
      const Segment& segment = segments_[i];
      const SegmentRows of_segment = {n, rows, grads, segment.value_offset, segment.state_offset};
      if (segment.retriever == nullptr) {
        segment.optimizer->Steps(of_segment, learning_rates[i], global_step);
      } else {
        OptimizeThroughRetriever(segment, of_segment, learning_rates[i], global_step);
      }
    }
  }

  void AppendDump(const std::byte* row, bool with_id, std::int64_t id,
                  std::uint32_t last_update_sec, std::string* record) const override {
    segments_.AppendDump(row, row, with_id, id, last_update_sec, record);
  }

  void Restore(const EntryDumpView& dump, std::byte* row) const override {
    RequireDim(dump, dim_);
    dump.num.CopyTo(row);
    segments_.RestoreStates(dump, row);
  }

  void RestoreValues(const EntryDumpView& dump, std::byte* row) const override {
    RequireDim(dump, dim_);
    dump.num.CopyTo(row);
    segments_.InitStates(row);
  }

 private:
  // Apart from Optimize, to keep the scratch buffer off its stack.
  __attribute__((noinline)) static void OptimizeThroughRetriever(const Segment& segment,
                                                                 const SegmentRows& rows,
                                                                 float learning_rate,
                                                                 std::int64_t global_step) {
    ScratchFloats w_grad(segment.dim);
    for (std::size_t i = 0; i < rows.n; ++i) {
      segment.retriever->Backward(rows.w(i), rows.grad(i), global_step, w_grad.data());
      segment.optimizer->Step(rows.w(i), rows.state(i), w_grad.data(), learning_rate, global_step);
    }
  }

  const Segments segments_;
  const std::size_t dim_;
  const bool raw_;
};

class ServingEntryAccessor final : public EntryAccessor {
 public:
  ServingEntryAccessor(std::vector<std::unique_ptr<Compressor>> compressors, bool raw)
      : compressors_(std::move(compressors)), raw_(raw) {
    for (const auto& compressor : compressors_) {
      dim_ += compressor->dim();
      used_bytes_ += compressor->bytes();
    }
  }

  [[nodiscard]] std::size_t row_bytes() const override { return (used_bytes_ + 3) / 4 * 4; }
  [[nodiscard]] std::size_t value_bytes() const override { return used_bytes_; }
  [[nodiscard]] std::size_t dim() const override { return dim_; }
  [[nodiscard]] std::size_t num_segments() const override {
    throw std::invalid_argument("ServingEntryAccessor doesn't support SliceSize");
  }
  [[nodiscard]] bool values_are_raw() const override { return raw_; }
  [[nodiscard]] std::string DebugString() const override {
    return "ServingEntryAccessor(dim=" + std::to_string(dim_) +
           ", segments=" + std::to_string(compressors_.size()) +
           ", row_bytes=" + std::to_string(row_bytes()) + ")";
  }

  void Init(std::byte* row) const override { std::memset(row, 0, row_bytes()); }

  void Read(const std::byte* row, float* values) const override {
    for (const auto& compressor : compressors_) {
      compressor->Decode(row, values);
      row += compressor->bytes();
      values += compressor->dim();
    }
  }

  void Assign(const float* values, std::byte* row) const override {
    for (const auto& compressor : compressors_) {
      compressor->Encode(values, row);
      row += compressor->bytes();
      values += compressor->dim();
    }
  }

  void AssignAdd(const float* values, std::byte* row) const override {
    ScratchFloats sums(dim_);
    Read(row, sums.data());
    AddFloats(dim_, values, sums.data());
    Assign(sums.data(), row);
  }

  void Optimize(std::size_t, std::byte* const*, const float* const*, const float*,
                std::int64_t) const override {
    throw std::invalid_argument("ServingEntryAccessor doesn't support Optimize");
  }

  void AppendDump(const std::byte*, bool, std::int64_t, std::uint32_t,
                  std::string*) const override {
    throw std::invalid_argument("ServingEntryAccessor doesn't support Save");
  }

  void Restore(const EntryDumpView& dump, std::byte* row) const override {
    RequireDim(dump, dim_);
    ScratchFloats values(dim_);
    dump.num.CopyTo(values.data());
    Init(row);  // For the padding.
    Assign(values.data(), row);
  }

  void RestoreValues(const EntryDumpView& dump, std::byte* row) const override {
    Restore(dump, row);
  }

 private:
  std::vector<std::unique_ptr<Compressor>> compressors_;
  std::size_t dim_ = 0;
  std::size_t used_bytes_ = 0;
  bool raw_;
};

// `dim_size` of the member that is set, if one is.
template <typename Variant>
std::optional<std::int32_t> MemberDim(const Variant& variant) {
  return std::visit(
      [](const auto& member) -> std::optional<std::int32_t> {
        if constexpr (std::is_same_v<std::decay_t<decltype(member)>, std::monostate>) {
          return std::nullopt;
        } else {
          return member.dim_size;
        }
      },
      variant);
}

std::size_t PositiveDim(std::int32_t dim, const EntryConfig& config) {
  if (dim <= 0) {
    throw std::invalid_argument("The dim_size of a segment must be positive, got " +
                                std::to_string(dim) + " in entry config: " + Describe(config));
  }
  return static_cast<std::size_t>(dim);
}

// A segment's own dim_size overrides those of its parts; without it, the parts have to agree.
std::size_t TrainingDim(const SegmentConfig& segment, const EntryConfig& config) {
  if (segment.dim_size.has_value()) return PositiveDim(*segment.dim_size, config);
  const auto initializer = MemberDim(segment.init_config->type);
  const auto optimizer = MemberDim(segment.opt_config->type);
  if (!initializer.has_value() || !optimizer.has_value()) return 1;  // Their makers will refuse.
  auto retriever = optimizer;  // Reading raw values works for any dim.
  if (MakeRetriever(segment.comp_config, 1) != nullptr) {
    retriever = MemberDim(segment.comp_config->type);
  }
  if (initializer != optimizer || optimizer != retriever) {
    throw std::invalid_argument("Initializer/Optimizer/Retriever dim size should match. But got " +
                                std::to_string(*initializer) + " vs " + std::to_string(*optimizer) +
                                " vs " + std::to_string(*retriever));
  }
  return PositiveDim(*optimizer, config);
}

std::unique_ptr<EntryAccessor> MakeTrainingAccessor(const EntryConfig& config) {
  std::vector<Segment> segments;
  for (const SegmentConfig& segment : config.segments) {
    if (!segment.init_config.has_value() || !segment.opt_config.has_value()) {
      throw std::invalid_argument("init or opt config is missing from entry config : " +
                                  Describe(config));
    }
    const std::size_t dim = TrainingDim(segment, config);
    segments.push_back({dim, MakeInitializer(*segment.init_config, dim),
                        MakeOptimizer(*segment.opt_config, dim),
                        MakeRetriever(segment.comp_config, dim)});
  }
  if (config.storage != EntryConfig::Storage::kFloat32) {
    return MakeCompactAccessor(std::move(segments), config.storage);
  }
  const std::size_t value_bytes = TotalDim(segments) * sizeof(float);
  return std::make_unique<TrainingEntryAccessor>(Segments(std::move(segments), value_bytes));
}

std::unique_ptr<EntryAccessor> MakeServingAccessor(const EntryConfig& config) {
  std::vector<std::unique_ptr<Compressor>> compressors;
  bool raw = true;
  for (const SegmentConfig& segment : config.segments) {
    if (!segment.comp_config.has_value()) {
      throw std::invalid_argument("comp config is missing form entry config: " + Describe(config));
    }
    const auto member_dim = MemberDim(segment.comp_config->type);
    const std::int32_t dim = segment.dim_size.value_or(member_dim.value_or(1));
    compressors.push_back(MakeCompressor(*segment.comp_config, PositiveDim(dim, config)));
    raw = raw && std::holds_alternative<Fp32Config>(segment.comp_config->type);
  }
  return std::make_unique<ServingEntryAccessor>(std::move(compressors), raw);
}

}  // namespace

std::unique_ptr<EntryAccessor> MakeEntryAccessor(const EntryConfig& config) {
  const bool serving = config.entry_type == EntryConfig::Type::kServing;
  if (!serving && config.entry_type != EntryConfig::Type::kTraining) {
    throw std::invalid_argument("Unknown entry type: " + Describe(config));
  }
  if (config.segments.empty()) {
    throw std::invalid_argument("The entry config has no segments: " + Describe(config));
  }
  return serving ? MakeServingAccessor(config) : MakeTrainingAccessor(config);
}

}  // namespace monolith::core
