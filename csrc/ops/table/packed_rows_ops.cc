// Rows that come in the form in which a table serves them.
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/row/serving_form.h"
#include "ops/system/sizes.h"
#include "ops/system/status_guard.h"
#include "ops/system/tensor_checks.h"
#include "ops/table/table_set.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace monolith::ops {
namespace {

namespace tf = tensorflow;
namespace shapes = tensorflow::shape_inference;

REGISTER_OP("MonolithTableUnpackRows")
    .Input("handle: resource")
    .Input("id_split: int64")
    .Input("packed: uint8")
    .Input("form: int64")
    .Output("value: float")
    .SetIsStateful()
    .SetShapeFn([](shapes::InferenceContext* c) {
      shapes::ShapeHandle unused;
      for (int i = 1; i < 4; ++i) TF_RETURN_IF_ERROR(c->WithRank(c->input(i), 1, &unused));
      c->set_output(0, c->UnknownShapeOfRank(1));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Returns rows, flat and table by table, that are `packed` as the tables of a set, or a single one,
serve them: each with the bytes that its compressors make of it. Rows
[id_split[k], id_split[k + 1]) are those of table k, and `form` is a number for each table, made of
its compressors and dims. Rows of another form are refused, since they would be other numbers.
)doc");

class UnpackRowsOp final : public tf::OpKernel {
 public:
  using tf::OpKernel::OpKernel;

  void Compute(tf::OpKernelContext* ctx) override {
    tf::core::RefCountPtr<TableSet> set;
    OP_REQUIRES_OK(ctx, GetTableSet(ctx, 0, &set));
    absl::Status status;
    const absl::Status guarded = Guard([&] { status = Unpack(ctx, *set); });
    OP_REQUIRES_OK(ctx, guarded);
    OP_REQUIRES_OK(ctx, status);
  }

 private:
  static absl::Status Unpack(tf::OpKernelContext* ctx, const TableSet& set) {
    const auto tables = set.tables();
    const std::size_t n = tables->size();
    const tf::Tensor& packed = ctx->input(2);
    TF_RETURN_IF_ERROR(CheckRank(packed, "packed", 1));
    TF_RETURN_IF_ERROR(CheckNumElements(ctx->input(1), "id_split", static_cast<std::int64_t>(n) + 1,
                                        "one more than there are tables"));
    TF_RETURN_IF_ERROR(CheckNumElements(ctx->input(3), "form", static_cast<std::int64_t>(n),
                                        "one for each table"));
    const auto split = Flat<std::int64_t>(ctx->input(1));
    TF_RETURN_IF_ERROR(CheckRowSplits(split, "id_split", split.back()));
    const auto asked = Flat<std::int64_t>(ctx->input(3));
    std::vector<std::unique_ptr<core::ServingForm>> forms;
    std::int64_t num_bytes = 0;
    std::int64_t num_values = 0;
    for (std::size_t t = 0; t < n; ++t) {
      forms.push_back(std::make_unique<core::ServingForm>((*tables)[t]->config().entry_config));
      if (forms[t]->fingerprint() != asked[t]) {
        return absl::InvalidArgumentError(
            absl::StrCat("Rows of table ", set.table_names()[t],
                         " have come in another form than it serves them in; send floats, or "
                         "export the model as it is trained."));
      }
      const std::int64_t rows = split[t + 1] - split[t];
      num_bytes =
          SizeSum(num_bytes, SizeProduct(rows, static_cast<std::int64_t>(forms[t]->row_bytes())));
      num_values =
          SizeSum(num_values, SizeProduct(rows, static_cast<std::int64_t>(forms[t]->dim())));
    }
    if (packed.NumElements() != num_bytes) {
      return absl::InvalidArgumentError(absl::StrCat("The rows of ", set.name(), " need ",
                                                     num_bytes, " bytes, but `packed` has ",
                                                     packed.NumElements(), "."));
    }
    tf::Tensor* values = nullptr;
    TF_RETURN_IF_ERROR(ctx->allocate_output(0, tf::TensorShape({num_values}), &values));
    const auto* from = reinterpret_cast<const std::byte*>(packed.flat<std::uint8_t>().data());
    float* to = values->flat<float>().data();
    for (std::size_t t = 0; t < n; ++t) {
      const auto rows = static_cast<std::size_t>(split[t + 1] - split[t]);
      forms[t]->Unpack(from, rows, to);
      from += rows * forms[t]->row_bytes();
      to += rows * forms[t]->dim();
    }
    return absl::OkStatus();
  }
};

REGISTER_KERNEL_BUILDER(Name("MonolithTableUnpackRows").Device(tf::DEVICE_CPU), UnpackRowsOp);

}  // namespace
}  // namespace monolith::ops
