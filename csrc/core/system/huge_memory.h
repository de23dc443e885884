// Large zeroed memory straight from the operating system, on huge pages where it allows them.
#pragma once

#include <cstddef>

namespace monolith::core {

inline constexpr std::size_t kHugePageBytes = std::size_t{2} << 20;

// Zeroed, aligned to a huge page, committed page by page when first touched. The first
// `small_prefix_bytes` stay on small pages, so that a small user of a large region costs little.
// Throws std::bad_alloc when the system refuses.
[[nodiscard]] std::byte* MapHugeMemory(std::size_t bytes, std::size_t small_prefix_bytes);

void UnmapHugeMemory(std::byte* memory, std::size_t bytes) noexcept;

}  // namespace monolith::core
