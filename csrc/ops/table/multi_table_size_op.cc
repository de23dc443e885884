// How many rows each table of a set has: for those who watch a training.
#include "ops/table/table_set.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace monolith::ops {
namespace {

namespace tf = tensorflow;
namespace shapes = tensorflow::shape_inference;

REGISTER_OP("MonolithMultiHashTableSize")
    .Input("mtable: resource")
    .Output("sizes: int64")
    .SetIsStateful()
    .SetShapeFn([](shapes::InferenceContext* c) {
      c->set_output(0, c->UnknownShapeOfRank(1));
      return absl::OkStatus();
    });

// In the order of the tables in the set.
class MultiSizeOp final : public tf::OpKernel {
 public:
  using tf::OpKernel::OpKernel;

  void Compute(tf::OpKernelContext* ctx) override {
    tf::core::RefCountPtr<TableSet> set;
    OP_REQUIRES_OK(ctx, GetTableSet(ctx, 0, &set));
    const auto& tables = set->tables();
    tf::Tensor* sizes = nullptr;
    OP_REQUIRES_OK(
        ctx, ctx->allocate_output(0, tf::TensorShape({static_cast<std::int64_t>(tables.size())}),
                                  &sizes));
    auto out = sizes->vec<std::int64_t>();
    for (std::size_t i = 0; i < tables.size(); ++i) {
      out(i) = static_cast<std::int64_t>(tables[i]->size());
    }
  }
};

REGISTER_KERNEL_BUILDER(Name("MonolithMultiHashTableSize").Device(tf::DEVICE_CPU), MultiSizeOp);

}  // namespace
}  // namespace monolith::ops
