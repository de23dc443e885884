// Hints to the system about files on local disks, so that disk and processor work at the same time.
#pragma once

#include <cstdint>
#include <string>

namespace monolith::ops {

// Without a hint, what is written stays in memory until the file is synced, and what is read is
// asked of the disk only when somebody waits for it. Hints are never errors: where a file is not on
// a local disk they do nothing.
class PageCacheHints {
 public:
  explicit PageCacheHints(const std::string& file);  // The file exists.
  ~PageCacheHints();
  PageCacheHints(const PageCacheHints&) = delete;
  PageCacheHints& operator=(const PageCacheHints&) = delete;

  // Start to bring bytes [offset, offset + size) to the disk, or from it; neither waits.
  void StartWriting(std::uint64_t offset, std::uint64_t size);
  void StartReading(std::uint64_t offset, std::uint64_t size);

 private:
  int descriptor_;
};

}  // namespace monolith::ops
