// Access to resource variables that a training op changes in place.
#pragma once

#include <algorithm>
#include <cstddef>
#include <deque>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/platform/mutex.h"

namespace monolith::ops {

// The variables behind the first inputs of a training op, locked and ready to be written.
//
// The protocol is that of TensorFlow's own dense training ops, so both may share variables: every
// variable is locked, in the order of the locks' addresses (two ops over the same variables cannot
// wait for each other), and one whose memory is still held by a reader is copied before the change.
// The locks are held while this object lives.
template <typename T>
class WritableVariables {
 public:
  // `names` are those of the op's inputs, for messages.
  [[nodiscard]] absl::Status Acquire(tensorflow::OpKernelContext* ctx,
                                     const std::vector<const char*>& names) {
    for (std::size_t i = 0; i < names.size(); ++i) {
      const tensorflow::ResourceHandle& handle =
          tensorflow::HandleFromInput(ctx, static_cast<int>(i));
      tensorflow::core::RefCountPtr<tensorflow::Var> variable;
      const absl::Status found = tensorflow::LookupResource(ctx, handle, &variable);
      // A variable comes into being when it is first assigned.
      if (absl::IsNotFound(found)) return Uninitialized(names[i], handle.name());
      TF_RETURN_IF_ERROR(found);
      variables_.push_back(std::move(variable));
    }
    LockInOrder();
    for (std::size_t i = 0; i < names.size(); ++i) {
      TF_RETURN_IF_ERROR(MakeWritable(ctx, i, names));
    }
    return absl::OkStatus();
  }

  [[nodiscard]] const tensorflow::TensorShape& shape() const { return tensors_[0].shape(); }
  [[nodiscard]] T* data(std::size_t i) { return tensors_[i].template flat<T>().data(); }

 private:
  static absl::Status Uninitialized(const char* input, const std::string& variable) {
    return absl::FailedPreconditionError(
        absl::StrCat("`", input, "` is the variable '", variable,
                     "', which is not initialized; run its initializer before the first step."));
  }

  void LockInOrder() {
    std::vector<tensorflow::Var*> in_order;
    for (const auto& variable : variables_) in_order.push_back(variable.get());
    std::sort(in_order.begin(), in_order.end(), [](tensorflow::Var* a, tensorflow::Var* b) {
      return std::less<const void*>()(a->mu(), b->mu());
    });
    in_order.erase(std::unique(in_order.begin(), in_order.end()), in_order.end());
    for (tensorflow::Var* variable : in_order) locks_.emplace_back(*variable->mu());
  }

  absl::Status MakeWritable(tensorflow::OpKernelContext* ctx, std::size_t i,
                            const std::vector<const char*>& names) {
    constexpr tensorflow::DataType kType = tensorflow::DataTypeToEnum<T>::value;
    tensorflow::Tensor* tensor = variables_[i]->tensor();
    if (!tensor->IsInitialized()) {
      return Uninitialized(names[i], tensorflow::HandleFromInput(ctx, static_cast<int>(i)).name());
    }
    if (tensor->dtype() != kType) {
      return absl::InvalidArgumentError(absl::StrCat(
          "`", names[i], "` must be a variable of type ", tensorflow::DataTypeString(kType),
          ", got ", tensorflow::DataTypeString(tensor->dtype()), "."));
    }
    if (i > 0 && tensor->shape() != shape()) {
      return absl::InvalidArgumentError(
          absl::StrCat("`", names[i], "` must have the shape ", shape().DebugString(), " of `",
                       names[0], "`, got ", tensor->shape().DebugString(), "."));
    }
    if (!tensor->RefCountIsOne()) {
      tensorflow::Tensor copy;
      TF_RETURN_IF_ERROR(ctx->allocate_temp(kType, tensor->shape(), &copy));
      std::copy_n(tensor->template flat<T>().data(), tensor->NumElements(),
                  copy.template flat<T>().data());
      *tensor = copy;
    }
    tensors_.push_back(*tensor);
    return absl::OkStatus();
  }

  // Declared in this order so that locks are released before the variables they belong to.
  std::vector<tensorflow::core::RefCountPtr<tensorflow::Var>> variables_;
  std::deque<tensorflow::mutex_lock> locks_;
  std::vector<tensorflow::Tensor> tensors_;
};

}  // namespace monolith::ops
