// How the bytes of one row are laid out and what the operations on it mean.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "core/table/table_config.h"
#include "core/wire/entry_dump.h"

namespace monolith::core {

// Training rows hold the values, as floats or as EntryConfig.storage says, then each segment's
// optimizer state. Serving rows hold the compressed values only, and refuse Optimize, AppendDump
// and num_segments.
//
// Immutable apart from the hash-net scale, which is atomic: every method may be called from any
// thread. Rows are locked by the caller and 8-byte aligned.
class EntryAccessor {
 public:
  virtual ~EntryAccessor() = default;

  [[nodiscard]] virtual std::size_t row_bytes() const = 0;  // A multiple of 4.
  // Of these, the first ones, which hold the values.
  [[nodiscard]] virtual std::size_t value_bytes() const = 0;
  [[nodiscard]] virtual std::size_t dim() const = 0;  // Floats that Read gives.
  // Learning rates that Optimize expects ("slice size").
  [[nodiscard]] virtual std::size_t num_segments() const = 0;
  // True when Read and Assign are plain copies of `dim` floats, from and to the start of the row.
  [[nodiscard]] virtual bool values_are_raw() const = 0;
  // For the table's debug string.
  [[nodiscard]] virtual std::string DebugString() const = 0;

  // Makes a new row: initial values (zeros when serving) and fresh optimizer states.
  virtual void Init(std::byte* row) const = 0;
  virtual void Read(const std::byte* row, float* values) const = 0;
  virtual void Assign(const float* values, std::byte* row) const = 0;
  virtual void AssignAdd(const float* values, std::byte* row) const = 0;
  // One step on each of `n` rows, in order, with its gradient [dim], which is left as it is, and
  // `learning_rates` [num_segments].
  virtual void Optimize(std::size_t n, std::byte* const* rows, const float* const* grads,
                        const float* learning_rates, std::int64_t global_step) const = 0;

  // Appends the row as a serialized EntryDump, with the id if `with_id`.
  virtual void AppendDump(const std::byte* row, bool with_id, std::int64_t id,
                          std::uint32_t last_update_sec, std::string* record) const = 0;
  // Fills the row, initialized or not, from a dump. Throws std::invalid_argument naming what does
  // not match (dim, kind of optimizer, length of its state); the row has to be initialized again
  // then. Never allocates for rows of usual width.
  virtual void Restore(const EntryDumpView& dump, std::byte* row) const = 0;
  // The same of the values alone: the optimizers start anew, whatever the dump holds of others.
  virtual void RestoreValues(const EntryDumpView& dump, std::byte* row) const = 0;
};

// Throws std::invalid_argument if the config does not describe a row.
[[nodiscard]] std::unique_ptr<EntryAccessor> MakeEntryAccessor(const EntryConfig& config);

}  // namespace monolith::core
