// A shared filter as one table sees it.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "core/filter/admission_filter.h"
#include "core/table/hash.h"

namespace monolith::core {

// Asks the shared filter with the table's own threshold, and under keys of the table's own: tables
// whose ids carry no slot may all have an id 7, and each counts its own. The key is a mixed hash,
// so a filter that tells ids apart by some of their bits finds them in all of them. It depends on
// the name and the id alone: counts of a saved filter are found again, on whichever server.
//
// Thread-safe, as the shared filter is, which outlives it.
class TableFilter final : public AdmissionFilter {
 public:
  TableFilter(SharedFilter* shared, std::string_view table, std::uint32_t threshold)
      : shared_(shared), name_hash_(HashName(table)), threshold_(threshold) {}

  bool Admit(std::int64_t id, std::uint32_t count) override {
    return shared_->AdmitFrom(threshold_, Key(id), count);
  }

  // What the shared filter knows the id as; no two ids of a table have the same.
  [[nodiscard]] std::int64_t Key(std::int64_t id) const {
    return static_cast<std::int64_t>(HashId(static_cast<std::int64_t>(HashId(id) ^ name_hash_)));
  }

 private:
  SharedFilter* const shared_;
  const std::uint64_t name_hash_;
  const std::uint32_t threshold_;
};

}  // namespace monolith::core
