// A short-lived buffer of floats that costs nothing for rows of usual width.
#pragma once

#include <array>
#include <cstddef>
#include <vector>

namespace monolith::core {

class ScratchFloats {
 public:
  explicit ScratchFloats(std::size_t size) {
    if (size > inline_.size()) {
      heap_.resize(size);
      data_ = heap_.data();
    }
  }
  ScratchFloats(const ScratchFloats&) = delete;
  ScratchFloats& operator=(const ScratchFloats&) = delete;

  // Uninitialized.
  [[nodiscard]] float* data() { return data_; }

 private:
  std::array<float, 512> inline_;
  std::vector<float> heap_;
  float* data_ = inline_.data();
};

}  // namespace monolith::core
