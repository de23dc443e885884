// The filter of a table that admits everybody.
#pragma once

#include <cstdint>

#include "core/filter/admission_filter.h"

namespace monolith::core {

// Stateless, hence thread-safe.
class DummyFilter final : public SharedFilter {
 public:
  bool Admit(std::int64_t, std::uint32_t) override { return true; }
  bool AdmitFrom(std::uint32_t, std::int64_t, std::uint32_t) override { return true; }
  [[nodiscard]] std::uint32_t max_threshold() const override { return 0; }
};

}  // namespace monolith::core
