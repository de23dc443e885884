#include "core/row/serving_form.h"

#include <cstring>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>

#include "core/table/hash.h"

namespace monolith::core {
namespace {

template <typename Number>
void Append(Number number, std::string* text) {
  text->append(reinterpret_cast<const char*>(&number), sizeof(number));
}

// Everything that the bytes of a segment depend on.
void AppendSegment(const SegmentConfig& segment, std::string* text) {
  const CompressorConfig& compressor = *segment.comp_config;
  Append(static_cast<std::uint32_t>(compressor.type.index()), text);
  std::visit(
      [&](const auto& member) {
        using Member = std::decay_t<decltype(member)>;
        if constexpr (!std::is_same_v<Member, std::monostate>) {
          Append(segment.dim_size.value_or(member.dim_size), text);
        }
        if constexpr (std::is_same_v<Member, FixedR8Config>) Append(member.r, text);
        if constexpr (std::is_same_v<Member, OneBitConfig>) Append(member.amplitude, text);
      },
      compressor.type);
}

}  // namespace

ServingForm::ServingForm(EntryConfig config) {
  config.entry_type = EntryConfig::Type::kServing;
  accessor_ = MakeEntryAccessor(config);  // Refuses segments without a compressor.
  std::string text;
  for (const SegmentConfig& segment : config.segments) AppendSegment(segment, &text);
  fingerprint_ = static_cast<std::int64_t>(HashName(text));
}

void ServingForm::Pack(const float* values, std::size_t n, std::byte* packed) const {
  std::memset(packed, 0, n * row_bytes());  // For what is between two rows.
  for (std::size_t i = 0; i < n; ++i) {
    accessor_->Assign(values + i * dim(), packed + i * row_bytes());
  }
}

void ServingForm::Unpack(const std::byte* packed, std::size_t n, float* values) const {
  for (std::size_t i = 0; i < n; ++i) {
    accessor_->Read(packed + i * row_bytes(), values + i * dim());
  }
}

}  // namespace monolith::core
