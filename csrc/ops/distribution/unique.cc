// Distinct ids of each table, and where the row of each must stand for all its occurrences.
#include <cstdint>
#include <numeric>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/table/id_numbers.h"
#include "ops/distribution/shared_tensor.h"
#include "ops/system/parallel.h"
#include "ops/system/sizes.h"
#include "ops/system/status_guard.h"
#include "ops/system/tensor_checks.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_handle.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace monolith::ops {
namespace {

namespace tf = tensorflow;
using tf::shape_inference::DimensionHandle;
using tf::shape_inference::InferenceContext;
using tf::shape_inference::ShapeHandle;

REGISTER_OP("MonolithUniqueKeyWithValueAndOffset")
    .Input("key: int64")
    .Input("key_split: int64")
    .Output("unique_key: int64")
    .Output("unique_key_split: int64")
    .Output("value_offset: int64")
    .Output("value_offset_split: int64")
    .Output("value_buffer: resource")
    .Attr("dims: list(int)")
    .Attr("generate_buffer: bool")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      std::vector<std::int64_t> dims;
      TF_RETURN_IF_ERROR(c->GetAttr("dims", &dims));
      ShapeHandle key;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 1, &key));
      ShapeHandle key_split;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 1, &key_split));
      c->set_output(0, c->UnknownShapeOfRank(1));
      c->set_output(1, c->Vector(static_cast<std::int64_t>(dims.size()) + 1));
      c->set_output(2, key);
      c->set_output(3, c->UnknownShapeOfRank(1));
      c->set_output(4, c->Scalar());
      return absl::OkStatus();
    })
    .Doc(R"doc(
Finds the distinct ids of each row of a ragged tensor, in the order in which they first come.

With one row per table, the flat value of the ids has the row of each occurrence of an id, as wide
as dims says for its table, one after the other.

value_offset: For each distinct id, where in the flat value its occurrences stand.
value_offset_split: Where the offsets of each distinct id begin.
value_buffer: An empty flat value to be filled, if generate_buffer is set.
)doc");

class UniqueKeyWithValueAndOffsetOp final : public tf::OpKernel {
 public:
  explicit UniqueKeyWithValueAndOffsetOp(tf::OpKernelConstruction* ctx) : tf::OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("dims", &dims_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("generate_buffer", &generate_buffer_));
    for (const std::int64_t dim : dims_) {
      OP_REQUIRES(
          ctx, dim > 0,
          absl::InvalidArgumentError(absl::StrCat("`dims` must be positive, got ", dim, ".")));
    }
  }

  void Compute(tf::OpKernelContext* ctx) override {
    const auto keys = Flat<std::int64_t>(ctx->input(0));
    const auto key_split = Flat<std::int64_t>(ctx->input(1));
    const auto num_rows = static_cast<std::int64_t>(dims_.size());
    OP_REQUIRES(
        ctx, key_split.size() == dims_.size() + 1,
        absl::InvalidArgumentError(absl::StrCat("RaggedKey should have ", num_rows, " but got ",
                                                static_cast<std::int64_t>(key_split.size()) - 1)));
    const auto num_keys = static_cast<std::int64_t>(keys.size());
    OP_REQUIRES_OK(ctx, CheckRowSplits(key_split, "key_split", num_keys));

    // Where the flat value of each row begins.
    std::vector<std::int64_t> first_value(num_rows + 1, 0);
    for (std::int64_t row = 0; row < num_rows; ++row) {
      first_value[row + 1] =
          SizeSum(first_value[row], SizeProduct(key_split[row + 1] - key_split[row], dims_[row]));
    }
    OP_REQUIRES_OK(ctx, CheckSize("dims", first_value[num_rows], num_keys));

    // Rows are independent of each other: each keeps its results in its own part of these.
    std::vector<std::uint32_t> numbers(keys.size());
    std::vector<std::vector<std::int64_t>> distinct(num_rows);
    std::vector<absl::Status> statuses(num_rows);
    const std::int64_t keys_per_row = num_rows == 0 ? 0 : num_keys / num_rows + 1;
    constexpr std::int64_t kCyclesPerKey = 30;
    ParallelFor(ctx, num_rows, keys_per_row * kCyclesPerKey,
                [&](std::int64_t begin, std::int64_t end) {
                  for (std::int64_t row = begin; row < end; ++row) {
                    statuses[row] = Guard([&] {
                      core::IdNumbers of_row(key_split[row + 1] - key_split[row]);
                      for (std::int64_t i = key_split[row]; i < key_split[row + 1]; ++i) {
                        numbers[i] = of_row.Add(keys[i]);
                      }
                      distinct[row] = std::move(of_row).TakeIds();
                    });
                  }
                });
    for (const absl::Status& status : statuses) OP_REQUIRES_OK(ctx, status);

    tf::Tensor* unique_split = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(1, tf::TensorShape({num_rows + 1}), &unique_split));
    std::int64_t* first_unique = unique_split->flat<std::int64_t>().data();
    first_unique[0] = 0;
    for (std::int64_t row = 0; row < num_rows; ++row) {
      first_unique[row + 1] = first_unique[row] + static_cast<std::int64_t>(distinct[row].size());
    }
    const std::int64_t num_unique = first_unique[num_rows];
    tf::Tensor* unique = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, tf::TensorShape({num_unique}), &unique));
    tf::Tensor* offset = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(2, tf::TensorShape({num_keys}), &offset));
    tf::Tensor* offset_split = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(3, tf::TensorShape({num_unique + 1}), &offset_split));
    std::int64_t* unique_keys = unique->flat<std::int64_t>().data();
    std::int64_t* offsets = offset->flat<std::int64_t>().data();
    std::int64_t* offset_splits = offset_split->flat<std::int64_t>().data();
    ParallelFor(
        ctx, num_rows, keys_per_row * kCyclesPerKey / 2, [&](std::int64_t begin, std::int64_t end) {
          std::vector<std::int64_t> next;  // By number: where its next offset goes.
          for (std::int64_t row = begin; row < end; ++row) {
            const std::size_t num_distinct = distinct[row].size();
            std::copy_n(distinct[row].data(), num_distinct, unique_keys + first_unique[row]);
            next.assign(num_distinct + 1, 0);
            for (std::int64_t i = key_split[row]; i < key_split[row + 1]; ++i) {
              ++next[numbers[i] + 1];
            }
            // Every key has one offset, so those of a row begin where its keys do.
            next[0] = key_split[row];
            std::partial_sum(next.begin(), next.end(), next.begin());
            std::copy_n(next.data(), num_distinct, offset_splits + first_unique[row]);
            for (std::int64_t i = key_split[row]; i < key_split[row + 1]; ++i) {
              offsets[next[numbers[i]]++] = first_value[row] + (i - key_split[row]) * dims_[row];
            }
          }
        });
    offset_splits[num_unique] = num_keys;

    tf::Tensor* handle = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(4, tf::TensorShape({}), &handle));
    if (!generate_buffer_) return;
    tf::Tensor buffer;
    OP_REQUIRES_OK(
        ctx, ctx->allocate_temp(tf::DT_FLOAT, tf::TensorShape({first_value[num_rows]}), &buffer));
    buffer.flat<float>().setZero();  // What nobody fills must not be what the memory held before.
    handle->scalar<tf::ResourceHandle>()() = tf::ResourceHandle::MakeRefCountingHandle(
        new SharedTensor(std::move(buffer)), ctx->device()->name());
  }

 private:
  std::vector<std::int64_t> dims_;
  bool generate_buffer_ = false;
};

REGISTER_KERNEL_BUILDER(Name("MonolithUniqueKeyWithValueAndOffset").Device(tf::DEVICE_CPU),
                        UniqueKeyWithValueAndOffsetOp);

}  // namespace
}  // namespace monolith::ops
