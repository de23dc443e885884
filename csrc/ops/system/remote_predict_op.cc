// An op that calls a model on another server, as the entry model asks parameter servers for rows.
//
// The wheel of TensorFlow brings no gRPC to link against. So the kernel writes the request and
// reads the answer, and what sends it, with a choice of replicas, deadlines and retries, is
// registered by the Python package (monolith/native/remote_predict.py).
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/wire/wire.h"
#include "ops/system/status_guard.h"
#include "ops/system/tensor_checks.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor.pb.h"
#include "tensorflow/core/lib/core/threadpool.h"
#include "tensorflow/core/platform/env.h"
#include "tensorflow/core/util/env_var.h"

namespace monolith::ops {
namespace {

namespace tf = tensorflow;
using tf::shape_inference::InferenceContext;
using tf::shape_inference::ShapeHandle;

// Fields of PredictRequest and PredictResponse of TensorFlow Serving, and of entries of a map.
constexpr std::uint32_t kInputs = 2;
constexpr std::uint32_t kOutputFilter = 3;
constexpr std::uint32_t kOutputs = 1;
constexpr std::uint32_t kKey = 1;
constexpr std::uint32_t kValue = 2;

REGISTER_OP("TfServingRemotePredict")
    .Input("input_tensor_aliases: string")
    .Input("input_tensors: T")
    .Input("output_tensor_aliases: string")
    .Output("status_code: int32")
    .Output("status_error_message: string")
    .Output("output_tensors: output_types")
    .Attr("T: list(type)")
    .Attr("model_name: string = ''")
    .Attr("model_version: int = -1")
    .Attr("fail_op_on_rpc_error: bool = true")
    .Attr("max_rpc_deadline_millis: int = 30")
    .Attr("signature_name: string = 'serving_default'")
    .Attr("old_model_name: string = ''")
    .Attr("task: int = -1")
    .Attr("output_types: list(type)")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      std::vector<tf::DataType> types;
      std::vector<tf::DataType> output_types;
      TF_RETURN_IF_ERROR(c->GetAttr("T", &types));
      TF_RETURN_IF_ERROR(c->GetAttr("output_types", &output_types));
      ShapeHandle aliases;
      tf::shape_inference::DimensionHandle unused;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 1, &aliases));
      TF_RETURN_IF_ERROR(c->WithValue(c->Dim(aliases, 0), types.size(), &unused));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(c->num_inputs() - 1), 1, &aliases));
      TF_RETURN_IF_ERROR(c->WithValue(c->Dim(aliases, 0), output_types.size(), &unused));
      c->set_output(0, c->Scalar());
      c->set_output(1, c->Scalar());
      for (int i = 2; i < c->num_outputs(); ++i) c->set_output(i, c->UnknownShape());
      return absl::OkStatus();
    })
    .Doc(R"doc(
Calls `signature_name` of a model on another server, with TensorFlow Serving's Predict.

`input_tensor_aliases`, [n], names the inputs there, `output_tensor_aliases`, [m], the outputs. The
model is `model_name`, or `old_model_name` where servers know one by the number of its part alone.
A call that has failed fails the op; without `fail_op_on_rpc_error`, `status_code` is that of gRPC,
and each output is a scalar.
)doc");

class RemotePredictKernel;

// Who waits for the answer to a call.
struct RemoteCall {
  tf::OpKernelContext* ctx;
  const RemotePredictKernel* kernel;
  tf::AsyncOpKernel::DoneCallback done;
};

// What a call came to.
struct RemoteAnswer {
  absl::Status status;
  std::string response;
  bool must_fail = true;
  float default_value = 0;
};

using RemoteSend = void (*)(std::uint64_t call, const char* model_name, const char* old_model_name,
                            std::int32_t task, const char* signature_name, std::int64_t version,
                            std::int64_t deadline_millis, const char* request,
                            std::size_t request_bytes);

// Held shared while Python is called, so that nobody is there any more once it is taken away.
std::shared_mutex remote_send_mutex;
RemoteSend remote_send = nullptr;

// The calls that are on their way, by number. Never destroyed: answers may come while the process
// ends.
class RemoteCalls {
 public:
  static RemoteCalls& Get() {
    static auto* const calls = new RemoteCalls;
    return *calls;
  }

  std::uint64_t Add(RemoteCall call) {
    const std::lock_guard lock(mutex_);
    calls_.emplace(++last_, std::move(call));
    return last_;
  }

  // Returns false if there is no such call, or it was taken before.
  bool Take(std::uint64_t number, RemoteCall* call) {
    const std::lock_guard lock(mutex_);
    const auto found = calls_.find(number);
    if (found == calls_.end()) return false;
    *call = std::move(found->second);
    calls_.erase(found);
    return true;
  }

 private:
  std::mutex mutex_;
  std::uint64_t last_ = 0;
  std::unordered_map<std::uint64_t, RemoteCall> calls_;
};

// Runs what comes after a call. The thread that brings an answer has others to bring, and the pool
// of a session may be that very thread. Never destroyed, as the calls.
tf::thread::ThreadPool& RemoteCallbackThreads() {
  static auto* const threads = [] {
    std::int64_t number = 0;
    const absl::Status status =
        tf::ReadInt64FromEnvVar("MONOLITH_GRPC_REMOTE_CALLBACK_THREADS", 10, &number);
    if (!status.ok() || number < 1) number = 10;
    return new tf::thread::ThreadPool(tf::Env::Default(), "remote_predict",
                                      static_cast<int>(number));
  }();
  return *threads;
}

class RemotePredictKernel final : public tf::AsyncOpKernel {
 public:
  explicit RemotePredictKernel(tf::OpKernelConstruction* ctx) : AsyncOpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("model_name", &model_name_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("old_model_name", &old_model_name_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("signature_name", &signature_name_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("model_version", &version_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("max_rpc_deadline_millis", &deadline_millis_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("task", &task_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("fail_op_on_rpc_error", &fails_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("output_types", &output_types_));
  }

  void ComputeAsync(tf::OpKernelContext* ctx, DoneCallback done) override {
    std::string request;
    OP_REQUIRES_OK_ASYNC(ctx, WriteRequest(ctx, &request), done);
    {
      const std::shared_lock lock(remote_send_mutex);
      if (remote_send != nullptr) {
        const std::uint64_t call = RemoteCalls::Get().Add({ctx, this, std::move(done)});
        // The answer may be there, and this op gone, before the next line returns.
        remote_send(call, model_name_.c_str(), old_model_name_.c_str(), task_,
                    signature_name_.c_str(), version_, deadline_millis_, request.data(),
                    request.size());
        return;
      }
    }
    // That the process is not set up must not look like a server that is away.
    RemoteAnswer answer;
    answer.status = absl::FailedPreconditionError(
        absl::StrCat("Model ", model_name_,
                     " is on other servers, and nothing in this process can "
                     "call them: the gRPC client is part of the Python package monolith; load the "
                     "model in a Python process after `import monolith.serving.remote`, or with "
                     "`monolith serve`."));
    Finish(ctx, answer, done);
  }

  // Hands the outputs out and ends the op.
  void Finish(tf::OpKernelContext* ctx, const RemoteAnswer& answer,
              const DoneCallback& done) const {
    absl::Status status = answer.status;
    std::vector<tf::Tensor> outputs(output_types_.size());
    if (status.ok()) {
      const absl::Status guarded = Guard([&] { status = Read(ctx, answer.response, &outputs); });
      if (!guarded.ok()) status = guarded;
      // It is not the server that is away.
      OP_REQUIRES_OK_ASYNC(ctx, status, done);
    }
    OP_REQUIRES_ASYNC(ctx, status.ok() || !(fails_ || answer.must_fail), status, done);
    tf::Tensor* code = nullptr;
    tf::Tensor* message = nullptr;
    OP_REQUIRES_OK_ASYNC(ctx, ctx->allocate_output(0, {}, &code), done);
    OP_REQUIRES_OK_ASYNC(ctx, ctx->allocate_output(1, {}, &message), done);
    code->scalar<std::int32_t>()() = static_cast<std::int32_t>(status.code());
    message->scalar<tf::tstring>()() = std::string(status.message());
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      const int index = static_cast<int>(i) + 2;
      if (status.ok()) {
        ctx->set_output(index, outputs[i]);
        continue;
      }
      tf::Tensor* output = nullptr;
      OP_REQUIRES_OK_ASYNC(ctx, ctx->allocate_output(index, {}, &output), done);
      if (output_types_[i] == tf::DT_FLOAT) {
        output->scalar<float>()() = answer.default_value;
      } else if (tf::DataTypeCanUseMemcpy(output_types_[i])) {
        auto bytes = output->tensor_data();
        std::fill_n(const_cast<char*>(bytes.data()), bytes.size(), '\0');
      }
    }
    done();
  }

 private:
  absl::Status WriteRequest(tf::OpKernelContext* ctx, std::string* request) const {
    tf::OpInputList inputs;
    const tf::Tensor* names = nullptr;
    const tf::Tensor* output_names = nullptr;
    TF_RETURN_IF_ERROR(ctx->input_list("input_tensors", &inputs));
    TF_RETURN_IF_ERROR(ctx->input("input_tensor_aliases", &names));
    TF_RETURN_IF_ERROR(ctx->input("output_tensor_aliases", &output_names));
    TF_RETURN_IF_ERROR(CheckRank(*names, "input_tensor_aliases", 1));
    TF_RETURN_IF_ERROR(CheckRank(*output_names, "output_tensor_aliases", 1));
    TF_RETURN_IF_ERROR(CheckNumElements(*names, "input_tensor_aliases", inputs.size(),
                                        "one for each input tensor"));
    TF_RETURN_IF_ERROR(CheckNumElements(*output_names, "output_tensor_aliases",
                                        static_cast<std::int64_t>(output_types_.size()),
                                        "one for each output type"));
    absl::Status status;
    const absl::Status guarded = Guard([&] {
      core::WireWriter writer(request);
      std::string entry;
      std::string tensor;
      for (int i = 0; i < inputs.size(); ++i) {
        const tf::DataType type = inputs[i].dtype();
        if (type == tf::DT_RESOURCE || type == tf::DT_VARIANT) {
          status = absl::InvalidArgumentError(absl::StrCat("Input ", i, " is a ",
                                                           tf::DataTypeString(type),
                                                           ", which cannot leave this process."));
          return;
        }
        tf::TensorProto proto;
        // As bytes, strings have a form that only TensorFlow itself reads.
        if (type == tf::DT_STRING) {
          inputs[i].AsProtoField(&proto);
        } else {
          inputs[i].AsProtoTensorContent(&proto);
        }
        tensor.clear();
        if (!proto.SerializeToString(&tensor)) {
          status = absl::InvalidArgumentError(absl::StrCat("Input ", i, " is too large to send."));
          return;
        }
        entry.clear();
        core::WireWriter entry_writer(&entry);
        entry_writer.Bytes(kKey, std::string_view(names->vec<tf::tstring>()(i)));
        entry_writer.Bytes(kValue, tensor);
        writer.Bytes(kInputs, entry);
      }
      for (std::int64_t i = 0; i < output_names->NumElements(); ++i) {
        writer.Bytes(kOutputFilter, std::string_view(output_names->vec<tf::tstring>()(i)));
      }
    });
    return guarded.ok() ? status : guarded;
  }

  absl::Status Read(tf::OpKernelContext* ctx, const std::string& response,
                    std::vector<tf::Tensor>* outputs) const {
    const auto names = ctx->input(ctx->num_inputs() - 1).vec<tf::tstring>();
    std::vector<bool> found(outputs->size());
    core::WireReader reader(response);
    for (core::WireField field; reader.Next(&field);) {
      if (field.number != kOutputs || field.type != core::WireType::kBytes) continue;
      std::string key;
      std::string_view value;
      core::WireReader entry(field.bytes);
      for (core::WireField part; entry.Next(&part);) {
        if (part.number == kKey) core::ReadScalar(part, &key);
        if (part.number == kValue && part.type == core::WireType::kBytes) value = part.bytes;
      }
      if (!entry.ok()) return Unreadable("an output is malformed");
      for (std::size_t i = 0; i < outputs->size(); ++i) {
        if (std::string_view(names(static_cast<std::int64_t>(i))) != key) continue;
        tf::TensorProto proto;
        if (!proto.ParseFromArray(value.data(), static_cast<int>(value.size())) ||
            proto.dtype() != output_types_[i] || !(*outputs)[i].FromProto(proto)) {
          return Unreadable(absl::StrCat("output ", key, " is no tensor of type ",
                                         tf::DataTypeString(output_types_[i])));
        }
        found[i] = true;
      }
    }
    if (!reader.ok()) return Unreadable("it is malformed");
    for (std::size_t i = 0; i < found.size(); ++i) {
      if (!found[i]) {
        return Unreadable(absl::StrCat("it has no output ", std::string_view(names(i))));
      }
    }
    return absl::OkStatus();
  }

  absl::Status Unreadable(const std::string& why) const {
    return absl::InternalError(absl::StrCat("The answer of signature ", signature_name_,
                                            " of model ", model_name_, " cannot be read: ", why,
                                            "."));
  }

  std::string model_name_;
  std::string old_model_name_;
  std::string signature_name_;
  std::int64_t version_ = -1;
  std::int64_t deadline_millis_ = 0;
  std::int32_t task_ = -1;
  bool fails_ = true;
  tf::DataTypeVector output_types_;
};

REGISTER_KERNEL_BUILDER(Name("TfServingRemotePredict").Device(tf::DEVICE_CPU), RemotePredictKernel);

}  // namespace
}  // namespace monolith::ops

// Has TfServingRemotePredict send its calls through `send`, null for not at all. Returns when no
// thread is in what was set before. The request lacks its `model_spec`, and is valid until `send`
// returns; `send` sees to it that MonolithRemotePredictDone is called once for each call.
extern "C" void MonolithSetRemotePredict(monolith::ops::RemoteSend send) {
  const std::unique_lock lock(monolith::ops::remote_send_mutex);
  monolith::ops::remote_send = send;
}

// The answer to a call, from any thread: a gRPC status and, if that is 0, a PredictResponse. Where
// the op does not fail by itself, `must_fail` has it fail; else each float output is
// `default_value`. A call that has its answer already is passed over.
extern "C" void MonolithRemotePredictDone(std::uint64_t call, std::int32_t code,
                                          const char* message, const char* response,
                                          std::size_t response_bytes, std::int32_t must_fail,
                                          float default_value) {
  namespace ops = monolith::ops;
  ops::RemoteCall waiting{};
  if (!ops::RemoteCalls::Get().Take(call, &waiting)) return;
  auto answer = std::make_shared<ops::RemoteAnswer>();
  answer->must_fail = must_fail != 0;
  answer->default_value = default_value;
  const bool known =
      code >= 0 && code <= static_cast<std::int32_t>(absl::StatusCode::kUnauthenticated);
  answer->status = absl::Status(
      known ? static_cast<absl::StatusCode>(code) : absl::StatusCode::kUnknown, message);
  if (code == 0) answer->response.assign(response, response_bytes);
  ops::RemoteCallbackThreads().Schedule([waiting = std::move(waiting), answer] {
    waiting.kernel->Finish(waiting.ctx, *answer, waiting.done);
  });
}
