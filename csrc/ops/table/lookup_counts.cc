#include "ops/table/lookup_counts.h"

#include <atomic>
#include <cstdint>

namespace monolith::ops {
namespace {

// Apart from each other and from all else, since every lookup writes them.
alignas(64) std::atomic<std::int64_t> ids_asked{0};
alignas(64) std::atomic<std::int64_t> ids_found{0};

}  // namespace

void CountLookup(std::size_t asked, std::size_t found) {
  ids_asked.fetch_add(static_cast<std::int64_t>(asked), std::memory_order_relaxed);
  ids_found.fetch_add(static_cast<std::int64_t>(found), std::memory_order_relaxed);
}

}  // namespace monolith::ops

// For the Python package, which is no op: counts since the process began.
extern "C" void MonolithLookupCounts(std::int64_t* asked, std::int64_t* found) {
  *found = monolith::ops::ids_found.load(std::memory_order_relaxed);
  *asked = monolith::ops::ids_asked.load(std::memory_order_relaxed);
}
