// Output memory that a kernel keeps from one step to the next.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "ops/system/sizes.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"

namespace monolith::ops {

// Hands out the memory of earlier outputs again once nobody else holds them.
//
// The system takes back large blocks when they are freed, and the next step pays a page fault for
// every 4 KB it writes, several times the cost of the write itself. The price is that the memory
// stays with the kernel between steps, up to kLimitBytes. Thread-safe.
class KeptOutputs {
 public:
  static constexpr std::int64_t kSmallBytes =
      64 * 1024;  // Below, the allocator keeps blocks itself.
  static constexpr std::int64_t kLimitBytes = 256 * 1024 * 1024;

  // Makes output `index` of `ctx` a tensor of the type `T` and the given shape, with any content.
  template <typename T>
  [[nodiscard]] absl::Status Allocate(tensorflow::OpKernelContext* ctx, int index,
                                      const tensorflow::TensorShape& shape, T** data) {
    tensorflow::Tensor output;
    const std::int64_t bytes =
        SizeProduct(shape.num_elements(), static_cast<std::int64_t>(sizeof(T)));
    if (bytes < kSmallBytes || !Take(index, shape, &output)) {
      TF_RETURN_IF_ERROR(ctx->allocate_temp(tensorflow::DataTypeToEnum<T>::value, shape, &output));
      if (bytes >= kSmallBytes) Keep(index, output, bytes);
    }
    *data = output.flat<T>().data();
    ctx->set_output(index, output);
    return absl::OkStatus();
  }

 private:
  bool Take(int index, const tensorflow::TensorShape& shape, tensorflow::Tensor* output) {
    absl::MutexLock lock(&mutex_);
    if (static_cast<std::size_t>(index) >= kept_.size()) return false;
    const tensorflow::Tensor& kept = kept_[index];
    if (kept.shape() != shape || !kept.RefCountIsOne()) return false;
    *output = kept;  // A second holder: nobody else gets it until the output is gone.
    return true;
  }

  void Keep(int index, const tensorflow::Tensor& output, std::int64_t bytes) {
    absl::MutexLock lock(&mutex_);
    if (static_cast<std::size_t>(index) >= kept_.size()) kept_.resize(index + 1);
    const std::int64_t others = bytes_ - static_cast<std::int64_t>(kept_[index].TotalBytes());
    if (others + bytes > kLimitBytes) return;
    kept_[index] = output;
    bytes_ = others + bytes;
  }

  absl::Mutex mutex_;
  std::vector<tensorflow::Tensor> kept_ ABSL_GUARDED_BY(mutex_);
  std::int64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace monolith::ops
