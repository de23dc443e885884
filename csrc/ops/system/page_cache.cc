#include "ops/system/page_cache.h"

#include <fcntl.h>
#include <unistd.h>

namespace monolith::ops {

PageCacheHints::PageCacheHints(const std::string& file)
    : descriptor_(open(file.c_str(), O_RDONLY | O_CLOEXEC)) {}

PageCacheHints::~PageCacheHints() {
  if (descriptor_ >= 0) close(descriptor_);
}

void PageCacheHints::StartWriting(std::uint64_t offset, std::uint64_t size) {
  if (descriptor_ < 0) return;
#if defined(SYNC_FILE_RANGE_WRITE)
  (void)sync_file_range(descriptor_, static_cast<off64_t>(offset), static_cast<off64_t>(size),
                        SYNC_FILE_RANGE_WRITE);
#else
  (void)offset, (void)size;
#endif
}

void PageCacheHints::StartReading(std::uint64_t offset, std::uint64_t size) {
  if (descriptor_ < 0) return;
  (void)posix_fadvise(descriptor_, static_cast<off_t>(offset), static_cast<off_t>(size),
                      POSIX_FADV_WILLNEED);
}

}  // namespace monolith::ops
