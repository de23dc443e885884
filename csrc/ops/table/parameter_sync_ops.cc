// Ops that tell servers which rows have changed. The bytes are sent by the Python package, since
// the wheel of TensorFlow brings no gRPC to link against.
//
// Each round, MonolithParameterSyncGather collects what has changed for all servers. Then, for each
// server apart, MonolithParameterSyncTake writes the next calls, and MonolithParameterSyncSettle
// says what came of them; MonolithParameterSyncCompare hears which ids a server has.
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/wire/wire.h"
#include "ops/system/handles.h"
#include "ops/system/status_guard.h"
#include "ops/system/tensor_checks.h"
#include "ops/table/parameter_sync_client.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/resource_op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/platform/env_time.h"

namespace monolith::ops {
namespace {

namespace tf = tensorflow;
namespace shapes = tensorflow::shape_inference;

// More in one message than any server takes.
constexpr std::int64_t kMostBytes = std::int64_t{1} << 30;
constexpr std::int64_t kMostRequests = 1024;

REGISTER_OP("MonolithParameterSyncClient")
    .Output("handle: resource")
    .Attr("config: string = ''")
    .Attr("container: string = ''")
    .Attr("shared_name: string = ''")
    .Attr("capacity: int >= 2 = 2097152")
    .SetIsStateful()
    .SetShapeFn(shapes::ScalarShape)
    .Doc(R"doc(
Makes, or finds by its name, a sync client, which remembers which rows of its tables each server has
yet to get: up to `capacity` ids for each. With more, the server gets all rows. `config`, if not
empty, is a serialized ClientConfig.
)doc");

REGISTER_OP("MonolithParameterSyncGather")
    .Input("handle: resource")
    .Input("targets: string")
    .Output("outstanding: int64")
    .Output("is_caught_up: bool")
    .SetIsStateful()
    .SetShapeFn([](shapes::InferenceContext* c) {
      shapes::ShapeHandle targets;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 1, &targets));
      c->set_output(0, targets);
      c->set_output(1, targets);
      return absl::OkStatus();
    })
    .Doc(R"doc(
Notes for each of the servers `targets`, [n], which rows have changed since the last call. A server
that was not there then gets all rows; one that is not there now is forgotten. Returns how many ids
are known to be outstanding for each, and whether it has everything.
)doc");

REGISTER_OP("MonolithParameterSyncTake")
    .Input("handle: resource")
    .Input("targets: string")
    .Input("assign_signature: string")
    .Output("target_index: int64")
    .Output("signatures: string")
    .Output("requests: string")
    .Output("num_ids: int64")
    .Attr("max_bytes: int >= 1 = 4194304")
    .Attr("max_requests: int >= 1 = 1")
    .Attr("packed: bool = false")
    .Attr("lists: bool = false")
    .SetIsStateful()
    .SetShapeFn([](shapes::InferenceContext* c) {
      shapes::ShapeHandle unused;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 1, &unused));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(2), 0, &unused));
      for (int i = 0; i < c->num_outputs(); ++i) c->set_output(i, c->UnknownShapeOfRank(1));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Writes the next calls for servers: which of `targets` each is for, the function of the model to
call, a serialized PredictRequest without its model_spec, and how many ids are in it. For each
server about `max_requests` calls of about `max_bytes`; none if it has everything. Single tables are
assigned by `assign_signature`, a set of tables by "<its name>/raw_assign". If `packed`, and rows are
served in another form than as floats, they are in that form, for the functions whose names end with
"_packed"; see MonolithTableUnpackRows. If `lists`, a server that has got all rows is asked which ids
it has, part by part, in calls with no ids whose answers go to MonolithParameterSyncCompare.
)doc");

REGISTER_OP("MonolithParameterSyncSettle")
    .Input("handle: resource")
    .Input("targets: string")
    .Input("has_arrived: bool")
    .Input("start_over: bool")
    .SetIsStateful()
    .SetShapeFn([](shapes::InferenceContext* c) {
      shapes::ShapeHandle targets;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 1, &targets));
      TF_RETURN_IF_ERROR(c->Merge(targets, c->input(2), &targets));
      TF_RETURN_IF_ERROR(c->Merge(targets, c->input(3), &targets));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Says of each of the servers `targets`, [n], whether all calls taken for it have arrived; if not,
they are taken again. With `start_over` a server has another model than before, and gets all rows.
)doc");

REGISTER_OP("MonolithParameterSyncCompare")
    .Input("handle: resource")
    .Input("target: string")
    .Input("ids: int64")
    .Input("next_place: int64")
    .Input("is_known: bool")
    .SetIsStateful()
    .SetShapeFn([](shapes::InferenceContext* c) {
      shapes::ShapeHandle unused;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 1, &unused));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(2), 1, &unused));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(3), 0, &unused));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(4), 0, &unused));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Hands over what `target`, [1], has answered to the last question of MonolithParameterSyncTake: the
outputs of MonolithTableListIds. Those of `ids` without a row in training are removed there by the
next calls. Without `is_known`, the server does not know such questions, and is asked no more of them
until it gets all rows again.
)doc");

class ParameterSyncClientOp final : public tf::ResourceOpKernel<SyncClient> {
 public:
  explicit ParameterSyncClientOp(tf::OpKernelConstruction* ctx) : ResourceOpKernel(ctx) {
    std::string config;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("config", &config));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("capacity", &capacity_));
    OP_REQUIRES(ctx, capacity_ <= static_cast<std::int64_t>(core::TouchedKeySet::kMaxCapacity),
                absl::InvalidArgumentError(absl::StrCat("`capacity` must be at most ",
                                                        core::TouchedKeySet::kMaxCapacity, ", got ",
                                                        capacity_, ".")));
    core::WireReader reader(config);
    for (core::WireField field; reader.Next(&field);) {
    }
    OP_REQUIRES(ctx, reader.ok(),
                absl::InvalidArgumentError("Unable to parse config. Make sure it is serialized "
                                           "version of ClientConfig"));
  }

 private:
  absl::Status CreateResource(SyncClient** client) override {
    return Guard([&] { *client = new ParameterSyncClient(static_cast<std::size_t>(capacity_)); });
  }

  std::int64_t capacity_ = 0;
};

std::vector<std::string> ToStrings(const tf::Tensor& tensor) {
  const auto values = tensor.flat<tf::tstring>();
  std::vector<std::string> strings;
  for (Eigen::Index i = 0; i < values.size(); ++i) strings.emplace_back(values(i));
  return strings;
}

double NowSec() { return static_cast<double>(tf::EnvTime::NowMicros()) / 1e6; }

// Finds the client and the servers, and hands them to the concrete op.
class SyncOp : public tf::OpKernel {
 public:
  using tf::OpKernel::OpKernel;

  void Compute(tf::OpKernelContext* ctx) final {
    tf::core::RefCountPtr<SyncClient> found;
    OP_REQUIRES_OK(ctx, FindResource(ctx, 0, &found));
    auto* const client = dynamic_cast<ParameterSyncClient*>(found.get());
    OP_REQUIRES(ctx, client != nullptr,
                absl::InvalidArgumentError(absl::StrCat(
                    "The handle is that of a ", found->DebugString(),
                    ", which remembers nothing; make one with MonolithParameterSyncClient.")));
    OP_REQUIRES_OK(ctx, CheckRank(ctx->input(1), "targets", 1));
    absl::Status status;
    const absl::Status guarded =
        Guard([&] { status = Run(ctx, *client, ToStrings(ctx->input(1))); });
    OP_REQUIRES_OK(ctx, guarded);
    OP_REQUIRES_OK(ctx, status);
  }

 protected:
  virtual absl::Status Run(tf::OpKernelContext* ctx, ParameterSyncClient& client,
                           const std::vector<std::string>& targets) = 0;
};

class GatherOp final : public SyncOp {
 public:
  using SyncOp::SyncOp;

 private:
  absl::Status Run(tf::OpKernelContext* ctx, ParameterSyncClient& client,
                   const std::vector<std::string>& targets) override {
    tf::Tensor* outstanding = nullptr;
    tf::Tensor* is_caught_up = nullptr;
    TF_RETURN_IF_ERROR(ctx->allocate_output(0, ctx->input(1).shape(), &outstanding));
    TF_RETURN_IF_ERROR(ctx->allocate_output(1, ctx->input(1).shape(), &is_caught_up));
    const std::vector<SyncProgress> progress = client.Gather(targets, NowSec());
    for (std::size_t i = 0; i < progress.size(); ++i) {
      outstanding->vec<std::int64_t>()(i) = progress[i].num_outstanding;
      is_caught_up->vec<bool>()(i) = progress[i].is_caught_up;
    }
    return absl::OkStatus();
  }
};

class TakeOp final : public SyncOp {
 public:
  explicit TakeOp(tf::OpKernelConstruction* ctx) : SyncOp(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("max_bytes", &max_bytes_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("max_requests", &max_requests_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("packed", &packed_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("lists", &lists_));
    OP_REQUIRES(ctx, max_bytes_ <= kMostBytes && max_requests_ <= kMostRequests,
                absl::InvalidArgumentError(absl::StrCat(
                    "`max_bytes` must be at most ", kMostBytes, ", and `max_requests` at most ",
                    kMostRequests, ", got ", max_bytes_, " and ", max_requests_, ".")));
  }

 private:
  absl::Status Run(tf::OpKernelContext* ctx, ParameterSyncClient& client,
                   const std::vector<std::string>& targets) override {
    TF_RETURN_IF_ERROR(CheckRank(ctx->input(2), "assign_signature", 0));
    const std::string signature(ctx->input(2).scalar<tf::tstring>()());
    std::vector<std::int64_t> target_index;
    std::vector<SyncRequest> requests;
    for (std::size_t i = 0; i < targets.size(); ++i) {
      for (SyncRequest& request :
           client.Take(targets[i], signature, static_cast<std::size_t>(max_bytes_),
                       static_cast<std::size_t>(max_requests_), packed_, lists_)) {
        target_index.push_back(static_cast<std::int64_t>(i));
        requests.push_back(std::move(request));
      }
    }
    const tf::TensorShape shape({static_cast<std::int64_t>(requests.size())});
    tf::Tensor* outputs[4];
    for (int i = 0; i < 4; ++i) TF_RETURN_IF_ERROR(ctx->allocate_output(i, shape, &outputs[i]));
    for (std::size_t i = 0; i < requests.size(); ++i) {
      outputs[0]->vec<std::int64_t>()(i) = target_index[i];
      outputs[1]->vec<tf::tstring>()(i) = requests[i].signature;
      outputs[2]->vec<tf::tstring>()(i) = requests[i].body;
      outputs[3]->vec<std::int64_t>()(i) = requests[i].num_ids;
    }
    return absl::OkStatus();
  }

  std::int64_t max_bytes_ = 0;
  std::int64_t max_requests_ = 0;
  bool packed_ = false;
  bool lists_ = false;
};

class SettleOp final : public SyncOp {
 public:
  using SyncOp::SyncOp;

 private:
  absl::Status Run(tf::OpKernelContext* ctx, ParameterSyncClient& client,
                   const std::vector<std::string>& targets) override {
    const auto n = static_cast<std::int64_t>(targets.size());
    TF_RETURN_IF_ERROR(CheckNumElements(ctx->input(2), "has_arrived", n, "one for each target"));
    TF_RETURN_IF_ERROR(CheckNumElements(ctx->input(3), "start_over", n, "one for each target"));
    const auto has_arrived = ctx->input(2).flat<bool>();
    const auto start_over = ctx->input(3).flat<bool>();
    for (std::size_t i = 0; i < targets.size(); ++i) {
      client.Settle(targets[i], has_arrived(i), NowSec());
      if (start_over(i)) client.StartOver(targets[i]);
    }
    return absl::OkStatus();
  }
};

class CompareOp final : public SyncOp {
 public:
  using SyncOp::SyncOp;

 private:
  absl::Status Run(tf::OpKernelContext* ctx, ParameterSyncClient& client,
                   const std::vector<std::string>& targets) override {
    TF_RETURN_IF_ERROR(CheckNumElements(ctx->input(1), "target", 1, "the server that answered"));
    TF_RETURN_IF_ERROR(CheckRank(ctx->input(2), "ids", 1));
    TF_RETURN_IF_ERROR(CheckRank(ctx->input(3), "next_place", 0));
    TF_RETURN_IF_ERROR(CheckRank(ctx->input(4), "is_known", 0));
    if (!ctx->input(4).scalar<bool>()()) {
      client.AskNoMore(targets[0]);
      return absl::OkStatus();
    }
    const auto ids = ctx->input(2).vec<std::int64_t>();
    client.Compare(targets[0], {ids.data(), ids.data() + ids.size()},
                   ctx->input(3).scalar<std::int64_t>()());
    return absl::OkStatus();
  }
};

REGISTER_KERNEL_BUILDER(Name("MonolithParameterSyncClient").Device(tf::DEVICE_CPU),
                        ParameterSyncClientOp);
REGISTER_KERNEL_BUILDER(Name("MonolithParameterSyncGather").Device(tf::DEVICE_CPU), GatherOp);
REGISTER_KERNEL_BUILDER(Name("MonolithParameterSyncTake").Device(tf::DEVICE_CPU), TakeOp);
REGISTER_KERNEL_BUILDER(Name("MonolithParameterSyncSettle").Device(tf::DEVICE_CPU), SettleOp);
REGISTER_KERNEL_BUILDER(Name("MonolithParameterSyncCompare").Device(tf::DEVICE_CPU), CompareOp);

}  // namespace
}  // namespace monolith::ops
