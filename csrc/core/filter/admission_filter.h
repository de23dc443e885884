// Decides which ids deserve a row of their own.
#pragma once

#include <cstdint>

namespace monolith::core {

// Decides whether an id that has no row yet may get one.
// Thread-safe: every method may be called from any thread.
class AdmissionFilter {
 public:
  virtual ~AdmissionFilter() = default;

  // Called by a table for an id it does not hold, seen `count` times in this call.
  // True: make the row. A filter that counts charges `count` occurrences to the id either way.
  virtual bool Admit(std::int64_t id, std::uint32_t count) = 0;
};

}  // namespace monolith::core
