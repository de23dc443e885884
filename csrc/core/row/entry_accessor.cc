#include "core/row/entry_accessor.h"

#include <cstring>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "core/optimizer/optimizer.h"
#include "core/row/compressor.h"
#include "core/row/initializer.h"
#include "core/row/retriever.h"
#include "core/system/scratch_floats.h"
#include "core/system/simd.h"

namespace monolith::core {
namespace {

MONOLITH_SIMD
void Add(std::size_t dim, const float* MONOLITH_RESTRICT values, float* MONOLITH_RESTRICT sums) {
  for (std::size_t i = 0; i < dim; ++i) sums[i] += values[i];
}

// Rows start 8-byte aligned with their floats.
float* Values(std::byte* row) { return reinterpret_cast<float*>(row); }
const float* Values(const std::byte* row) { return reinterpret_cast<const float*>(row); }

[[noreturn]] void ThrowRestore(const EntryDumpView& dump, const std::string& why) {
  const std::string id = dump.has_id ? "id " + std::to_string(dump.id) : "an entry without id";
  throw std::invalid_argument("Cannot restore " + id + ": " + why);
}

void RequireDim(const EntryDumpView& dump, std::size_t dim) {
  if (dump.num.size() != dim) {
    ThrowRestore(dump, "the dump has dim " + std::to_string(dump.num.size()) +
                           ", but the table has dim " + std::to_string(dim) + ".");
  }
}

struct Segment {
  std::size_t dim;
  std::size_t value_offset;  // Floats.
  std::size_t state_offset;  // Bytes.
  std::unique_ptr<Initializer> initializer;
  std::unique_ptr<Optimizer> optimizer;
  std::unique_ptr<Retriever> retriever;  // nullptr: values are read as they are.
};

// Bytes of an EntryDump outside `opt`'s content.
constexpr char kIdTag = static_cast<char>(WireTag(1, WireType::kFixed64));
constexpr std::uint32_t kNumField = 2;
constexpr char kOptTag = static_cast<char>(WireTag(3, WireType::kBytes));
constexpr char kLastUpdateTag = static_cast<char>(WireTag(4, WireType::kVarint));

class TrainingEntryAccessor final : public EntryAccessor {
 public:
  explicit TrainingEntryAccessor(std::vector<Segment> segments) : segments_(std::move(segments)) {
    for (Segment& segment : segments_) {
      segment.value_offset = dim_;
      dim_ += segment.dim;
      num_dumps_ += static_cast<std::size_t>(segment.optimizer->num_dumps());
      fixed_opt_bytes_ += segment.optimizer->fixed_dump_bytes();
      fixed_ = fixed_ && (segment.optimizer->num_dumps() == 0) ==
                             (segment.optimizer->fixed_dump_bytes() == 0);
      raw_ = raw_ && segment.retriever == nullptr;
    }
    row_bytes_ = dim_ * sizeof(float);
    for (Segment& segment : segments_) {
      segment.state_offset = row_bytes_;
      row_bytes_ += segment.optimizer->state_bytes();
    }
  }

  [[nodiscard]] std::size_t row_bytes() const override { return row_bytes_; }
  [[nodiscard]] std::size_t dim() const override { return dim_; }
  [[nodiscard]] std::size_t num_segments() const override { return segments_.size(); }
  [[nodiscard]] bool values_are_raw() const override { return raw_; }
  [[nodiscard]] std::string DebugString() const override {
    return "TrainingEntryAccessor(dim=" + std::to_string(dim_) +
           ", segments=" + std::to_string(segments_.size()) +
           ", row_bytes=" + std::to_string(row_bytes_) + ")";
  }

  void Init(std::byte* row) const override {
    for (const Segment& segment : segments_) {
      segment.initializer->Initialize(Values(row) + segment.value_offset);
      segment.optimizer->InitState(row + segment.state_offset);
    }
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
    Add(dim_, values, Values(row));
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
    std::size_t opt_bytes = 0;
    for (const Segment& segment : segments_) {
      opt_bytes += segment.optimizer->DumpBytes(row + segment.state_offset);
    }
    const std::size_t before = record->size();
    record->resize(before + (with_id ? 9 : 0) + FloatsBytes(dim_) + 1 + VarintBytes(opt_bytes) +
                   opt_bytes + 1 + VarintBytes(last_update_sec));
    char* out = record->data() + before;
    if (with_id) {
      *out++ = kIdTag;
      out = WriteFixed64(static_cast<std::uint64_t>(id), out);
    }
    out = WriteFloats(kNumField, row, dim_, out);
    *out++ = kOptTag;
    out = WriteVarint(opt_bytes, out);
    for (const Segment& segment : segments_) {
      out = segment.optimizer->WriteDump(row + segment.state_offset, out);
    }
    *out++ = kLastUpdateTag;
    WriteVarint(last_update_sec, out);
  }

  void Restore(const EntryDumpView& dump, std::byte* row) const override {
    RequireDim(dump, dim_);
    dump.num.CopyTo(row);
    if (fixed_ && dump.opt.size() == fixed_opt_bytes_ && RestoreStatesAsWritten(dump.opt, row)) {
      return;
    }
    std::size_t found = 0;
    auto segment = segments_.begin();
    WireReader reader(dump.opt);
    for (WireField field; reader.Next(&field);) {
      if (field.number != 1 || field.type != WireType::kBytes) continue;
      while (segment != segments_.end() && segment->optimizer->num_dumps() == 0) ++segment;
      ++found;
      if (segment == segments_.end()) continue;  // Goes on counting for the message.
      RestoreState(dump, *segment, field.bytes, row);
      ++segment;
    }
    if (!reader.ok()) ThrowRestore(dump, "its optimizer dump is malformed.");
    if (found != num_dumps_) {
      ThrowRestore(dump, "the dump holds the states of " + std::to_string(found) +
                             " optimizers, but the table has " + std::to_string(num_dumps_) + ".");
    }
  }

  void RestoreValues(const EntryDumpView& dump, std::byte* row) const override {
    RequireDim(dump, dim_);
    dump.num.CopyTo(row);
    for (const Segment& segment : segments_) {
      segment.optimizer->InitState(row + segment.state_offset);
    }
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

  // Returns false if the bytes are not as AppendDump lays them out.
  [[nodiscard]] bool RestoreStatesAsWritten(std::string_view opt, std::byte* row) const {
    const char* at = opt.data();
    for (const Segment& segment : segments_) {
      const std::size_t bytes = segment.optimizer->fixed_dump_bytes();
      if (bytes == 0) continue;
      if (!segment.optimizer->ReadDump(at, row + segment.state_offset)) return false;
      at += bytes;
    }
    return true;
  }

  void RestoreState(const EntryDumpView& dump, const Segment& segment,
                    std::string_view single_optimizer_dump, std::byte* row) const {
    try {
      segment.optimizer->ParseDump(single_optimizer_dump, row + segment.state_offset);
    } catch (const std::invalid_argument& error) {
      ThrowRestore(dump,
                   "segment " + std::to_string(&segment - segments_.data()) + ": " + error.what());
    }
  }

  std::vector<Segment> segments_;
  std::size_t dim_ = 0;
  std::size_t row_bytes_ = 0;
  std::size_t num_dumps_ = 0;
  bool fixed_ = true;                // Whether the optimizers' part of every dump is equally long,
  std::size_t fixed_opt_bytes_ = 0;  // and how long.
  bool raw_ = true;
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
    Add(dim_, values, sums.data());
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
    segments.push_back({dim, 0, 0, MakeInitializer(*segment.init_config, dim),
                        MakeOptimizer(*segment.opt_config, dim),
                        MakeRetriever(segment.comp_config, dim)});
  }
  return std::make_unique<TrainingEntryAccessor>(std::move(segments));
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
