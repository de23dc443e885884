// A tensor that several ops of one step fill together.
#pragma once

#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "tensorflow/core/framework/resource_base.h"
#include "tensorflow/core/framework/tensor.h"

namespace monolith::ops {

// Lives as long as somebody holds its handle, at most until the end of the step. Those who write
// must write to different places; the tensor is taken out once, when all have written.
class SharedTensor : public tensorflow::ResourceBase {
 public:
  explicit SharedTensor(tensorflow::Tensor tensor) : tensor_(std::move(tensor)) {}

  [[nodiscard]] std::string DebugString() const override { return "SharedTensor"; }

  // The tensor, which shares its memory with this one; an error once it was taken out.
  absl::Status Get(tensorflow::Tensor* tensor) const {
    absl::MutexLock lock(&mutex_);
    if (taken_) return Gone();
    *tensor = tensor_;
    return absl::OkStatus();
  }

  absl::Status Take(tensorflow::Tensor* tensor) {
    absl::MutexLock lock(&mutex_);
    if (taken_) return Gone();
    taken_ = true;
    *tensor = std::move(tensor_);
    tensor_ = tensorflow::Tensor();
    return absl::OkStatus();
  }

 private:
  static absl::Status Gone() {
    return absl::FailedPreconditionError(
        "The shared tensor is gone: it was finalized already. Write to it before, and finalize it "
        "once in each step.");
  }

  mutable absl::Mutex mutex_;
  tensorflow::Tensor tensor_ ABSL_GUARDED_BY(mutex_);
  bool taken_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace monolith::ops
