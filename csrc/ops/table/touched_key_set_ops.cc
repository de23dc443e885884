// Ops on a set of touched keys: make one, insert, steal.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/table/touched_key_set.h"
#include "ops/system/handles.h"
#include "ops/system/status_guard.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/framework/tensor.h"

namespace monolith::ops {
namespace {

namespace tf = tensorflow;
using tf::shape_inference::InferenceContext;
using tf::shape_inference::ShapeHandle;

// Returns a shape function for one vector of `length` made from a scalar handle.
auto VectorShape(std::int64_t length) {
  return [length](InferenceContext* c) {
    ShapeHandle unused;
    TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 0, &unused));
    c->set_output(0, c->Vector(length));
    return absl::OkStatus();
  };
}

REGISTER_OP("MonolithTouchedKeySet")
    .Output("handle: resource")
    .Attr("capacity: int >= 0 = 2097152")
    .Attr("concurrency_level: int >= 1 = 1024")
    .Attr("container: string = ''")
    .Attr("shared_name: string = ''")
    .SetIsStateful()
    .SetShapeFn(tf::shape_inference::ScalarShape)
    .Doc(
        "Makes, or finds by its name, a set that holds up to `capacity` ids until they are "
        "stolen.");

REGISTER_OP("MonolithTouchedKeySetInsert")
    .Input("handle: resource")
    .Input("ids: int64")
    .Output("size: int64")
    .SetIsStateful()
    .SetShapeFn(VectorShape(1))
    .Doc("Adds ids to the set, and returns how many it had to drop because it was full.");

REGISTER_OP("MonolithTouchedKeySetSteal")
    .Input("handle: resource")
    .Output("ids: int64")
    .SetIsStateful()
    .SetShapeFn(VectorShape(InferenceContext::kUnknownDim))
    .Doc("Empties the set and returns the ids that were in it.");

class TouchedKeySetResource : public tf::ResourceBase {
 public:
  TouchedKeySetResource(std::int64_t capacity, std::int64_t concurrency_level)
      : capacity(capacity),
        concurrency_level(concurrency_level),
        set(capacity, concurrency_level) {}

  [[nodiscard]] std::string DebugString() const override {
    return absl::StrCat("a touched-key set of capacity ", capacity, " and concurrency level ",
                        concurrency_level);
  }

  const std::int64_t capacity;
  const std::int64_t concurrency_level;
  core::TouchedKeySet set;
};

class CreateKernel final : public tf::ResourceOpKernel<TouchedKeySetResource> {
 public:
  explicit CreateKernel(tf::OpKernelConstruction* ctx) : ResourceOpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("capacity", &capacity_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("concurrency_level", &concurrency_level_));
  }

 private:
  absl::Status CreateResource(TouchedKeySetResource** resource) override {
    return Guard([&] { *resource = new TouchedKeySetResource(capacity_, concurrency_level_); });
  }

  absl::Status VerifyResource(TouchedKeySetResource* resource) override {
    if (resource->capacity == capacity_ && resource->concurrency_level == concurrency_level_) {
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(
        absl::StrCat("'", cinfo_.name(), "' exists already as ", resource->DebugString(),
                     ", which is not capacity ", capacity_, " and concurrency level ",
                     concurrency_level_, "; give the new one another name suffix."));
  }

  std::int64_t capacity_ = 0;
  std::int64_t concurrency_level_ = 0;
};

class InsertKernel final : public tf::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(tf::OpKernelContext* ctx) override {
    tf::core::RefCountPtr<TouchedKeySetResource> resource;
    OP_REQUIRES_OK(ctx, FindResource(ctx, 0, &resource));
    const auto ids = ctx->input(1).flat<std::int64_t>();
    tf::Tensor* dropped = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, {1}, &dropped));
    OP_REQUIRES_OK(ctx, Guard([&] {
                     dropped->flat<std::int64_t>()(0) =
                         static_cast<std::int64_t>(resource->set.Insert(ids.data(), ids.size()));
                   }));
  }
};

class StealKernel final : public tf::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(tf::OpKernelContext* ctx) override {
    tf::core::RefCountPtr<TouchedKeySetResource> resource;
    OP_REQUIRES_OK(ctx, FindResource(ctx, 0, &resource));
    std::vector<std::int64_t> ids;
    OP_REQUIRES_OK(ctx, Guard([&] { ids = resource->set.Steal(); }));
    tf::Tensor* output = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, {static_cast<std::int64_t>(ids.size())}, &output));
    std::copy(ids.begin(), ids.end(), output->flat<std::int64_t>().data());
  }
};

REGISTER_KERNEL_BUILDER(Name("MonolithTouchedKeySet").Device(tf::DEVICE_CPU), CreateKernel);
REGISTER_KERNEL_BUILDER(Name("MonolithTouchedKeySetInsert").Device(tf::DEVICE_CPU), InsertKernel);
REGISTER_KERNEL_BUILDER(Name("MonolithTouchedKeySetSteal").Device(tf::DEVICE_CPU), StealKernel);

}  // namespace
}  // namespace monolith::ops
