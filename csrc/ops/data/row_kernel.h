// What the ops over serialized rows share.
#pragma once

#include <cstdint>
#include <mutex>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/data/row_view.h"
#include "ops/system/status_guard.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"

namespace monolith::ops {

inline core::RecordFormat GetFormat(tensorflow::OpKernelConstruction* ctx) {
  std::string format;
  // An op without it is not made.
  if (!ctx->GetAttr("format", &format).ok()) return core::RecordFormat::kExample;
  return format == "instance" ? core::RecordFormat::kInstance : core::RecordFormat::kExample;
}

// Calls `fn(i, row)` for each row, and names one that is refused.
template <typename Fn>
absl::Status ForEachRow(const tensorflow::Tensor& rows, core::RecordFormat format, Fn&& fn) {
  const tensorflow::tstring* records = rows.flat<tensorflow::tstring>().data();
  for (std::int64_t i = 0; i < rows.NumElements(); ++i) {
    const absl::Status status = Guard([&] {
      fn(i, core::RowView(format, std::string_view(records[i].data(), records[i].size())));
    });
    if (status.ok()) continue;
    const char* name = format == core::RecordFormat::kInstance ? "Instance" : "Example";
    return absl::Status(
        status.code(),
        absl::StrCat("a record is no ", name, " that could be read: ", status.message(), "."));
  }
  return absl::OkStatus();
}

// Random numbers of an op; several threads may draw.
class Dice {
 public:
  absl::Status Init(tensorflow::OpKernelConstruction* ctx) {
    std::int64_t seed = 0;
    std::int64_t seed2 = 0;
    TF_RETURN_IF_ERROR(ctx->GetAttr("seed", &seed));
    TF_RETURN_IF_ERROR(ctx->GetAttr("seed2", &seed2));
    std::random_device device;
    const bool is_given = seed != 0 || seed2 != 0;
    std::seed_seq both{is_given ? static_cast<std::uint32_t>(seed) : device(),
                       is_given ? static_cast<std::uint32_t>(seed2) : device()};
    engine_.seed(both);
    return absl::OkStatus();
  }
  double operator()() {
    const std::lock_guard lock(mu_);
    return std::uniform_real_distribution<double>(0, 1)(engine_);
  }

 private:
  std::mutex mu_;
  std::mt19937_64 engine_;
};

inline absl::Status CheckRates(const std::vector<float>& rates) {
  for (const float rate : rates) {
    if (!(rate >= 0 && rate <= 1)) {
      return absl::InvalidArgumentError(absl::StrCat("A rate must be 0 to 1, got ", rate, "."));
    }
  }
  return absl::OkStatus();
}

}  // namespace monolith::ops
