#include "ops/table/table_calls.h"

#include <cmath>
#include <vector>

#include "absl/strings/str_cat.h"
#include "ops/system/sizes.h"

namespace monolith::ops {
namespace {

namespace tf = tensorflow;

// Below these, handing work to other threads costs more than it saves.
constexpr std::size_t kIdsWorthThreads = 16384;
constexpr std::size_t kIdsWorthThreadsIfAsked = 2048;

}  // namespace

absl::Status ReadNonNegative(tf::OpKernelContext* ctx, int index, const char* name,
                             std::int64_t* value) {
  const tf::Tensor& tensor = ctx->input(index);
  if (tensor.NumElements() != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("`", name, "` must be a scalar, got shape ", tensor.shape().DebugString()));
  }
  *value = tensor.flat<std::int64_t>()(0);
  if (*value < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, "=", *value, " is negative, please investigate!"));
  }
  return absl::OkStatus();
}

absl::Status CheckForTraining(const TableSet& set) {
  if (set.is_for_training()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("Table ", set.name(),
                   ": ServingEntryAccessor doesn't support Optimize; its entry_type is SERVING."));
}

absl::Status CheckLearningRates(const tf::Tensor& learning_rates, std::size_t expected,
                                const std::string& table) {
  if (static_cast<std::size_t>(learning_rates.NumElements()) != expected) {
    return absl::InvalidArgumentError(absl::StrCat("Table ", table, " needs ", expected,
                                                   " learning rates, one per segment, got ",
                                                   learning_rates.NumElements(), "."));
  }
  const auto rates = learning_rates.flat<float>();
  for (Eigen::Index i = 0; i < rates.size(); ++i) {
    if (!std::isfinite(rates(i))) {
      return absl::InvalidArgumentError(
          absl::StrCat("Table ", table, ": learning rate ", i, " is ", rates(i),
                       "; the update was not applied. Check the learning-rate function."));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckRows(const std::string& table, std::size_t n, std::size_t dim,
                       std::size_t num_values) {
  const std::int64_t needed =
      SizeProduct(static_cast<std::int64_t>(n), static_cast<std::int64_t>(dim));
  if (needed == static_cast<std::int64_t>(num_values)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("Table ", table, ": The dim doesn't match expectation. ", n, " ids of dim ", dim,
                   " need ", needed, " values, got ", num_values, "."));
}

bool WorthThreads(tf::OpKernelContext* ctx, std::size_t n, bool asked_for) {
  return n >= (asked_for ? kIdsWorthThreadsIfAsked : kIdsWorthThreads) &&
         ctx->device()->tensorflow_cpu_worker_threads()->num_threads > 1;
}

void Optimize(const TableSet& set, std::size_t index, core::EmbeddingTable& table,
              const std::int64_t* ids, std::size_t n, const float* grads,
              const float* learning_rates, const UpdateArguments& arguments,
              const core::Parallel* parallel) {
  const NoteTouched note(set, index, ids, n);
  core::WriteOptions options;
  options.update_time_sec = arguments.update_time_sec;
  options.filter = set.filter(index);
  options.parallel = parallel;
  options.gradient_of = arguments.gradient_of;
  const auto optimize = arguments.sum_equal_ids ? &core::EmbeddingTable::OptimizeSummed
                                                : &core::EmbeddingTable::Optimize;
  const std::size_t held_back =
      (table.*optimize)(ids, n, grads, learning_rates, arguments.global_step, options);
  if (!set.sync_client()->is_listening()) return;
  const std::string& name = set.table_names()[index];
  if (held_back == 0) {
    set.sync_client()->Touched(name, ids, n);
    return;
  }
  // Ids that the filter has held back have no row to send, and would only fill the memory for ids.
  std::vector<std::uint8_t> present(n);
  table.LookupPresent(ids, n, nullptr, present.data());
  std::vector<std::int64_t> with_row;
  for (std::size_t i = 0; i < n; ++i) {
    if (present[i] != 0) with_row.push_back(ids[i]);
  }
  set.sync_client()->Touched(name, with_row.data(), with_row.size());
}

absl::Status NameTable(const absl::Status& status, const std::string& table) {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat("Table ", table, ": ", status.message()));
}

}  // namespace monolith::ops
