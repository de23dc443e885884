#include "core/row/segments.h"

#include <stdexcept>
#include <utility>

#include "core/system/simd.h"
#include "core/wire/wire.h"

namespace monolith::core {
namespace {

// Bytes of an EntryDump outside `opt`'s content.
constexpr char kIdTag = static_cast<char>(WireTag(1, WireType::kFixed64));
constexpr std::uint32_t kNumField = 2;
constexpr char kOptTag = static_cast<char>(WireTag(3, WireType::kBytes));
constexpr char kLastUpdateTag = static_cast<char>(WireTag(4, WireType::kVarint));

[[noreturn]] void ThrowRestore(const EntryDumpView& dump, const std::string& why) {
  const std::string id = dump.has_id ? "id " + std::to_string(dump.id) : "an entry without id";
  throw std::invalid_argument("Cannot restore " + id + ": " + why);
}

MONOLITH_SIMD
void Add(std::size_t dim, const float* MONOLITH_RESTRICT values, float* MONOLITH_RESTRICT sums) {
  for (std::size_t i = 0; i < dim; ++i) sums[i] += values[i];
}

}  // namespace

void AddFloats(std::size_t dim, const float* values, float* sums) { Add(dim, values, sums); }

std::size_t TotalDim(const std::vector<Segment>& segments) {
  std::size_t dim = 0;
  for (const Segment& segment : segments) dim += segment.dim;
  return dim;
}

void RequireDim(const EntryDumpView& dump, std::size_t dim) {
  if (dump.num.size() != dim) {
    ThrowRestore(dump, "the dump has dim " + std::to_string(dump.num.size()) +
                           ", but the table has dim " + std::to_string(dim) + ".");
  }
}

Segments::Segments(std::vector<Segment> segments, std::size_t value_bytes)
    : segments_(std::move(segments)), row_bytes_(value_bytes) {
  for (Segment& segment : segments_) {
    segment.value_offset = dim_;
    dim_ += segment.dim;
    segment.state_offset = row_bytes_;
    row_bytes_ += segment.optimizer->state_bytes();
    num_dumps_ += static_cast<std::size_t>(segment.optimizer->num_dumps());
    fixed_opt_bytes_ += segment.optimizer->fixed_dump_bytes();
    fixed_ = fixed_ &&
             (segment.optimizer->num_dumps() == 0) == (segment.optimizer->fixed_dump_bytes() == 0);
    raw_ = raw_ && segment.retriever == nullptr;
  }
}

std::string Segments::DebugString() const {
  return "TrainingEntryAccessor(dim=" + std::to_string(dim_) +
         ", segments=" + std::to_string(segments_.size()) +
         ", row_bytes=" + std::to_string(row_bytes_) + ")";
}

void Segments::InitStates(std::byte* row) const {
  for (const Segment& segment : segments_) {
    segment.optimizer->InitState(row + segment.state_offset);
  }
}

void Segments::AppendDump(const void* values, const std::byte* row, bool with_id, std::int64_t id,
                          std::uint32_t last_update_sec, std::string* record) const {
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
  out = WriteFloats(kNumField, values, dim_, out);
  *out++ = kOptTag;
  out = WriteVarint(opt_bytes, out);
  for (const Segment& segment : segments_) {
    out = segment.optimizer->WriteDump(row + segment.state_offset, out);
  }
  *out++ = kLastUpdateTag;
  WriteVarint(last_update_sec, out);
}

void Segments::RestoreStates(const EntryDumpView& dump, std::byte* row) const {
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

// Returns false if the bytes are not as AppendDump lays them out.
bool Segments::RestoreStatesAsWritten(std::string_view opt, std::byte* row) const {
  const char* at = opt.data();
  for (const Segment& segment : segments_) {
    const std::size_t bytes = segment.optimizer->fixed_dump_bytes();
    if (bytes == 0) continue;
    if (!segment.optimizer->ReadDump(at, row + segment.state_offset)) return false;
    at += bytes;
  }
  return true;
}

void Segments::RestoreState(const EntryDumpView& dump, const Segment& segment,
                            std::string_view single_optimizer_dump, std::byte* row) const {
  try {
    segment.optimizer->ParseDump(single_optimizer_dump, row + segment.state_offset);
  } catch (const std::invalid_argument& error) {
    ThrowRestore(dump,
                 "segment " + std::to_string(&segment - segments_.data()) + ": " + error.what());
  }
}

}  // namespace monolith::core
