#include "core/wire/record_frame.h"

#include <cstring>
#include <limits>

#include "core/wire/crc32c.h"

namespace monolith::core {
namespace {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "files are little endian");

// A checksum of bytes that themselves hold checksums is weak; the file format masks them.
std::uint32_t MaskedCrc(std::string_view data) {
  const std::uint32_t crc = Crc32c(data);
  return (crc >> 15 | crc << 17) + 0xA282EAD8u;
}

template <typename Integer>
Integer Load(const char* from) {
  Integer value = 0;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

template <typename Integer>
void Store(Integer value, char* to) {
  std::memcpy(to, &value, sizeof(value));
}

}  // namespace

void AppendRecord(std::string_view record, std::string* file) {
  char head[kRecordHeadBytes];
  Store<std::uint64_t>(record.size(), head);
  Store(MaskedCrc({head, sizeof(std::uint64_t)}), head + sizeof(std::uint64_t));
  char foot[kRecordFootBytes];
  Store(MaskedCrc(record), foot);
  file->append(head, sizeof(head));
  file->append(record);
  file->append(foot, sizeof(foot));
}

RecordRead ReadRecord(std::string_view file, std::string_view* record, std::uint64_t* frame_bytes) {
  *frame_bytes = kRecordHeadBytes;
  if (file.size() < kRecordHeadBytes) return RecordRead::kIncomplete;
  const auto length = Load<std::uint64_t>(file.data());
  if (Load<std::uint32_t>(file.data() + sizeof(length)) !=
      MaskedCrc(file.substr(0, sizeof(length)))) {
    return RecordRead::kCorrupt;
  }
  constexpr std::uint64_t kMost = std::numeric_limits<std::int64_t>::max();
  if (length > kMost) return RecordRead::kCorrupt;
  *frame_bytes = kRecordHeadBytes + length + kRecordFootBytes;
  if (file.size() < *frame_bytes) return RecordRead::kIncomplete;
  *record = file.substr(kRecordHeadBytes, length);
  if (Load<std::uint32_t>(record->data() + length) != MaskedCrc(*record)) {
    return RecordRead::kCorrupt;
  }
  return RecordRead::kOk;
}

}  // namespace monolith::core
