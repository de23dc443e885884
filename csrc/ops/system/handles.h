// From a handle among the inputs to what it refers to.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"

namespace monolith::ops {

// Looks up what input `index` refers to, which must be one handle: of a vector TensorFlow would
// take the first, and shape functions promise a scalar where a handle is passed on.
template <typename Resource>
[[nodiscard]] absl::Status FindResource(tensorflow::OpKernelContext* ctx, int index,
                                        tensorflow::core::RefCountPtr<Resource>* found) {
  const tensorflow::TensorShape& shape = ctx->input(index).shape();
  if (shape.dims() != 0) {
    return absl::InvalidArgumentError(absl::StrCat("Input ", index, " of ", ctx->op_kernel().name(),
                                                   " must be one handle, a scalar, got shape ",
                                                   shape.DebugString(), "."));
  }
  return tensorflow::LookupResource(ctx, tensorflow::HandleFromInput(ctx, index), found);
}

}  // namespace monolith::ops
