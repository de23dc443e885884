// The ids of a sparse column, which grow by a few at a time.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string_view>
#include <utility>

#include "core/data/fid.h"

namespace monolith::core {

// What a std::vector is, except that new elements are not set to zero before they are written; for
// one id, that and the call cost more than the id.
class FidBuffer {
 public:
  [[nodiscard]] std::size_t size() const { return size_; }
  [[nodiscard]] const std::int64_t* begin() const { return values_.get(); }
  [[nodiscard]] const std::int64_t* end() const { return values_.get() + size_; }

  // Makes room for `count` more, and returns where they are to be written.
  [[nodiscard]] std::int64_t* Extend(std::size_t count) {
    if (count > capacity_ - size_) Grow(count);
    std::int64_t* added = values_.get() + size_;
    size_ += count;
    return added;
  }
  // Keeps the first `size` ids, of at least as many.
  void Truncate(std::size_t size) { size_ = size; }

  // Appends fids as they stand in a message; those of version 1 become version 2 if `convert`.
  void Append(const char* fids, std::size_t count, bool convert) {
    std::int64_t* added = Extend(count);
    for (std::size_t i = 0; i < count; ++i) {
      std::uint64_t fid = 0;
      std::memcpy(&fid, fids + i * sizeof(fid), sizeof(fid));
      added[i] = static_cast<std::int64_t>(convert ? ConvertV1ToV2(fid) : fid);
    }
  }

  // Appends the fids of a Feature that is written as most are: nothing but one packed list of up to
  // 15 of them. Returns false, with nothing appended, if it is not.
  [[nodiscard]] bool AppendUsual(std::string_view feature, bool convert_v1) {
    const std::size_t size = feature.size();
    if (size % sizeof(std::uint64_t) != 4 || size >= 0x80) return false;
    std::uint32_t header = 0;  // The list and its size, the fids and their size.
    std::memcpy(&header, feature.data(), sizeof(header));
    const auto sizes = static_cast<std::uint32_t>((size - 2) << 8 | (size - 4) << 24);
    const bool is_v1 = header == (sizes | 0x0a000a);
    if (!is_v1 && header != (sizes | 0x0a0012)) return false;
    Append(feature.data() + sizeof(header), size / sizeof(std::uint64_t), is_v1 && convert_v1);
    return true;
  }

 private:
  void Grow(std::size_t count) {
    const std::size_t capacity = std::max({size_ + count, 2 * capacity_, std::size_t{64}});
    std::unique_ptr<std::int64_t[]> values(new std::int64_t[capacity]);
    std::copy(begin(), end(), values.get());
    values_ = std::move(values);
    capacity_ = capacity;
  }

  std::unique_ptr<std::int64_t[]> values_;
  std::size_t size_ = 0;
  std::size_t capacity_ = 0;
};

}  // namespace monolith::core
