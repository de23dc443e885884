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

// A filter that many tables share. It has a threshold for each slot of ids; who has a threshold of
// its own may bring it.
class SharedFilter : public AdmissionFilter {
 public:
  // The same with this threshold in place of that of the id's slot.
  virtual bool AdmitFrom(std::uint32_t threshold, std::int64_t id, std::uint32_t count) = 0;
  // The greatest threshold that it can keep to; 0 if it cannot hold an id back at all.
  [[nodiscard]] virtual std::uint32_t max_threshold() const = 0;
};

}  // namespace monolith::core
