// What the ops that read and write snapshots of tables share.
#pragma once

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "ops/system/status_guard.h"
#include "ops/system/tensor_checks.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"

namespace monolith::ops {

[[nodiscard]] inline absl::Status ReadBasename(tensorflow::OpKernelContext* ctx, int input,
                                               std::string* basename) {
  const tensorflow::Tensor& tensor = ctx->input(input);
  if (tensor.NumElements() != 1) {
    return absl::InvalidArgumentError(absl::StrCat("`basename` must be a scalar string, got shape ",
                                                   tensor.shape().DebugString()));
  }
  *basename = std::string(tensor.flat<tensorflow::tstring>()(0));
  return CheckFileName("basename", *basename);
}

// File work runs on a thread of its own: it would block one of TensorFlow's for minutes.
class FileOp : public tensorflow::AsyncOpKernel {
 public:
  using tensorflow::AsyncOpKernel::AsyncOpKernel;

  void ComputeAsync(tensorflow::OpKernelContext* ctx, DoneCallback done) final {
    ctx->env()->SchedClosure([this, ctx, done = std::move(done)] {
      absl::Status status;
      const absl::Status guarded = Guard([&] { status = Run(ctx); });
      ctx->SetStatus(status.ok() ? guarded : status);
      done();
    });
  }

 protected:
  virtual absl::Status Run(tensorflow::OpKernelContext* ctx) = 0;
};

}  // namespace monolith::ops
