// The filter of a table that admits everybody.
#pragma once

#include <cstdint>

#include "core/filter/admission_filter.h"

namespace monolith::core {

// Stateless, hence thread-safe.
class DummyFilter final : public AdmissionFilter {
 public:
  bool Admit(std::int64_t, std::uint32_t) override { return true; }
};

}  // namespace monolith::core
