// What the table ops share: checked arguments, and the calls into the core.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "ops/table/table_set.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"

namespace monolith::ops {

// The arguments of an update that are the same for all its ids.
struct UpdateArguments {
  std::int64_t update_time_sec = 0;
  std::int64_t global_step = 0;
  const float* learning_rates = nullptr;       // As many as the set has segments, table by table.
  bool sum_equal_ids = false;                  // One optimizer step per distinct id.
  const std::uint32_t* gradient_of = nullptr;  // As in core::WriteOptions.
};

// Reads input `index`, a scalar (or one-element) int64 that must not be negative; `name` is for
// errors. By number, since finding an input by its name takes as long as finding a row.
[[nodiscard]] absl::Status ReadNonNegative(tensorflow::OpKernelContext* ctx, int index,
                                           const char* name, std::int64_t* value);

// Serving tables refuse updates.
[[nodiscard]] absl::Status CheckForTraining(const TableSet& set);

// Checks that `learning_rates` holds one finite number per segment of the tables of all `sets`.
[[nodiscard]] absl::Status CheckLearningRates(const tensorflow::Tensor& learning_rates,
                                              std::size_t expected, const std::string& table);

// Checks that `values` holds `n` rows of `dim` floats.
[[nodiscard]] absl::Status CheckRows(const std::string& table, std::size_t n, std::size_t dim,
                                     std::size_t num_values);

// Whether there are several threads, and a batch of `n` ids is worth them.
[[nodiscard]] bool WorthThreads(tensorflow::OpKernelContext* ctx, std::size_t n, bool asked_for);

// One gradient step on `table`, which is number `index` of `set`; tells the sync client.
// `learning_rates` are those of this table. May throw what the core throws.
void Optimize(const TableSet& set, std::size_t index, core::EmbeddingTable& table,
              const std::int64_t* ids, std::size_t n, const float* grads,
              const float* learning_rates, const UpdateArguments& arguments,
              const core::Parallel* parallel);

// Notes down at its end that a write has changed rows, also when it ends in an exception: the rows
// before the error are changed. Costs nothing if nobody follows table `index` of `set`.
class NoteTouched {
 public:
  NoteTouched(const TableSet& set, std::size_t index, const std::int64_t* ids, std::size_t n)
      : rows_(set.touched_rows(index)), ids_(ids), n_(n) {}
  ~NoteTouched() {
    if (rows_ != nullptr) rows_->Insert(ids_, n_);
  }
  NoteTouched(const NoteTouched&) = delete;
  NoteTouched& operator=(const NoteTouched&) = delete;

 private:
  core::TouchedRows* const rows_;
  const std::int64_t* const ids_;
  const std::size_t n_;
};

// Puts the table's name in front of an error of the core.
[[nodiscard]] absl::Status NameTable(const absl::Status& status, const std::string& table);

}  // namespace monolith::ops
