// Records of a TFRecord file without compression: length, checksum of the length, bytes, checksum
// of the bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace monolith::core {

inline constexpr std::size_t kRecordHeadBytes = 12;
inline constexpr std::size_t kRecordFootBytes = 4;

// Appends the record in its frame.
void AppendRecord(std::string_view record, std::string* file);

enum class RecordRead {
  kOk,
  kIncomplete,  // `file` ends before the record does; *frame_bytes says what it needs at least.
  kCorrupt,     // A checksum does not fit.
};

// Reads the record at the start of `file`, in place; `frame_bytes` gets its size with the frame.
[[nodiscard]] RecordRead ReadRecord(std::string_view file, std::string_view* record,
                                    std::uint64_t* frame_bytes);

}  // namespace monolith::core
