// Rows as they are kept where they are served, for those that send them there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "core/row/entry_accessor.h"
#include "core/table/table_config.h"

namespace monolith::core {

// The values of a row as its compressors leave them, and no optimizer state: what one place has
// packed, another unpacks if its form has the same fingerprint. Immutable: any thread.
class ServingForm {
 public:
  // Of the rows of a table, whether it trains or serves. Throws std::invalid_argument if the config
  // does not say how rows are served.
  explicit ServingForm(EntryConfig config);

  [[nodiscard]] std::size_t dim() const { return accessor_->dim(); }
  [[nodiscard]] std::size_t row_bytes() const { return accessor_->row_bytes(); }
  // Whether that is the floats themselves.
  [[nodiscard]] bool is_raw() const { return accessor_->values_are_raw(); }
  // The same in every process, for forms of which one reads what the other writes.
  [[nodiscard]] std::int64_t fingerprint() const { return fingerprint_; }

  // `values` are [n, dim], `packed` [n, row_bytes] at any address.
  void Pack(const float* values, std::size_t n, std::byte* packed) const;
  void Unpack(const std::byte* packed, std::size_t n, float* values) const;

 private:
  std::int64_t fingerprint_;
  std::unique_ptr<EntryAccessor> accessor_;
};

}  // namespace monolith::core
