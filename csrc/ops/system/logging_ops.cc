// Ops that observe a running graph: time stamps, timers for the monitoring, and the health of the
// process that an op runs in.
#include <cstdint>
#include <fstream>
#include <mutex>
#include <shared_mutex>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "core/wire/wire.h"
#include "ops/system/handles.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/framework/tensor.h"

namespace monolith::ops {
namespace {

namespace tf = tensorflow;
using tf::shape_inference::InferenceContext;
using tf::shape_inference::ShapeHandle;

using TimerCallback = void (*)(const char* key, float value, const char* tags);

// Held shared during a call, so that whoever sets another callback knows that nobody is in the old
// one any more.
std::shared_mutex timer_mutex;
TimerCallback timer_callback = nullptr;

// Stateful, all of them: two equal ops are two observations.
REGISTER_OP("MonolithTensorsTimestamp")
    .Input("tensors: T")
    .Output("same_tensors: T")
    .Output("timestamp: int64")
    .Attr("T: list(type) >= 0")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      for (int i = 0; i < c->num_inputs(); ++i) c->set_output(i, c->input(i));
      c->set_output(c->num_inputs(), c->Scalar());
      return absl::OkStatus();
    })
    .Doc(R"doc(
Passes `tensors` on, and tells the wall clock in microseconds at which the last of them was there.
)doc");

REGISTER_OP("MonolithTimerEmit")
    .Input("value: float")
    .Attr("key: string")
    .Attr("tags: string = ''")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle unused;
      return c->WithRank(c->input(0), 0, &unused);
    })
    .Doc(R"doc(
Hands `value` to the process's timer callback under `key` and `tags`; does nothing while no callback
is set.
)doc");

REGISTER_OP("MonolithMachineInfo")
    .Output("handle: resource")
    .Attr("mem_limit: int")
    .Attr("container: string = ''")
    .Attr("shared_name: string = ''")
    .SetIsStateful()
    .SetShapeFn(tf::shape_inference::ScalarShape)
    .Doc(
        "Makes, or finds by its name, the record of how many bytes of memory the process may "
        "hold.");

REGISTER_OP("MonolithMachineHealthCheck")
    .Input("handle: resource")
    .Output("status: string")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle unused;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 0, &unused));
      c->set_output(0, c->Scalar());
      return absl::OkStatus();
    })
    .Doc(R"doc(
Returns an empty string while the process holds less memory than the limit, else a serialized
MachineHealthResult that says how much.
)doc");

class TensorsTimestampKernel final : public tf::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(tf::OpKernelContext* ctx) override {
    const int n = ctx->num_inputs();
    for (int i = 0; i < n; ++i) ctx->set_output(i, ctx->input(i));
    tf::Tensor* timestamp = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(n, {}, &timestamp));
    timestamp->scalar<std::int64_t>()() = static_cast<std::int64_t>(ctx->env()->NowMicros());
  }
};

class TimerEmitKernel final : public tf::OpKernel {
 public:
  explicit TimerEmitKernel(tf::OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("key", &key_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("tags", &tags_));
  }

  void Compute(tf::OpKernelContext* ctx) override {
    const tf::Tensor& value = ctx->input(0);
    OP_REQUIRES(ctx, tf::TensorShapeUtils::IsScalar(value.shape()),
                absl::InvalidArgumentError(absl::StrCat("`value` of timer ", key_,
                                                        " must be a scalar, got shape ",
                                                        value.shape().DebugString(), ".")));
    const std::shared_lock lock(timer_mutex);
    if (timer_callback != nullptr) {
      timer_callback(key_.c_str(), value.scalar<float>()(), tags_.c_str());
    }
  }

 private:
  std::string key_;
  std::string tags_;
};

class MachineInfo : public tf::ResourceBase {
 public:
  explicit MachineInfo(std::int64_t mem_limit) : mem_limit(mem_limit) {}

  [[nodiscard]] std::string DebugString() const override {
    return absl::StrCat("a machine with a memory limit of ", mem_limit, " bytes");
  }

  const std::int64_t mem_limit;
};

// Makes the info of its name, or takes the one that is there: a process sets its own limit, and
// others ask for its health without knowing the limit.
class MachineInfoKernel final : public tf::OpKernel {
 public:
  explicit MachineInfoKernel(tf::OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("mem_limit", &mem_limit_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("shared_name", &shared_name_));
    OP_REQUIRES_OK(ctx, container_.Init(ctx->resource_manager(), def()));
  }

  void Compute(tf::OpKernelContext* ctx) override {
    tf::ResourceHandle handle;
    if (shared_name_.empty()) {
      // Nobody can look for it, so it lives no longer than its handle.
      handle = tf::ResourceHandle::MakeRefCountingHandle(new MachineInfo(mem_limit_),
                                                         ctx->device()->name());
    } else {
      tf::core::RefCountPtr<MachineInfo> info;
      MachineInfo* found = nullptr;
      OP_REQUIRES_OK(
          ctx, ctx->resource_manager()->LookupOrCreate<MachineInfo>(
                   container_.container(), container_.name(), &found, [this](MachineInfo** made) {
                     *made = new MachineInfo(mem_limit_);
                     return absl::OkStatus();
                   }));
      info.reset(found);
      handle = tf::MakeResourceHandle<MachineInfo>(ctx, container_.container(), container_.name());
    }
    tf::Tensor* output = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, {}, &output));
    output->scalar<tf::ResourceHandle>()() = handle;
  }

 private:
  std::int64_t mem_limit_ = 0;
  std::string shared_name_;
  tf::ContainerInfo container_;
};

// Reads how much memory this process holds.
absl::Status ReadResidentBytes(std::int64_t* bytes) {
  constexpr char kFile[] = "/proc/self/status";
  constexpr std::int64_t kBytesPerKb = 1024;
  std::ifstream status(kFile);
  for (std::string line; std::getline(status, line);) {
    absl::string_view rest = line;
    if (!absl::ConsumePrefix(&rest, "VmRSS:") || !absl::ConsumeSuffix(&rest, "kB")) continue;
    if (!absl::SimpleAtoi(rest, bytes)) break;
    *bytes *= kBytesPerKb;
    return absl::OkStatus();
  }
  return absl::InternalError(absl::StrCat("The memory of this process is not known: ", kFile,
                                          " has no line `VmRSS: NUMBER kB`."));
}

// A MachineHealthResult: status = 1, message = 2.
std::string EncodeOutOfMemory(std::int64_t current, std::int64_t limit) {
  constexpr std::uint64_t kOutOfMemory = 1;
  std::string result;
  core::WireWriter writer(&result);
  writer.Varint(1, kOutOfMemory);
  writer.Bytes(2, absl::StrFormat("Memory limit exceeded. Current: %d, Limit: %d", current, limit));
  return result;
}

class MachineHealthCheckKernel final : public tf::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(tf::OpKernelContext* ctx) override {
    tf::core::RefCountPtr<MachineInfo> info;
    OP_REQUIRES_OK(ctx, FindResource(ctx, 0, &info));
    std::int64_t resident = 0;
    OP_REQUIRES_OK(ctx, ReadResidentBytes(&resident));
    tf::Tensor* status = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, {}, &status));
    if (resident >= info->mem_limit) {
      status->scalar<tf::tstring>()() = EncodeOutOfMemory(resident, info->mem_limit);
    }
  }
};

REGISTER_KERNEL_BUILDER(Name("MonolithTensorsTimestamp").Device(tf::DEVICE_CPU),
                        TensorsTimestampKernel);
REGISTER_KERNEL_BUILDER(Name("MonolithTimerEmit").Device(tf::DEVICE_CPU), TimerEmitKernel);
REGISTER_KERNEL_BUILDER(Name("MonolithMachineInfo").Device(tf::DEVICE_CPU), MachineInfoKernel);
REGISTER_KERNEL_BUILDER(Name("MonolithMachineHealthCheck").Device(tf::DEVICE_CPU),
                        MachineHealthCheckKernel);

}  // namespace
}  // namespace monolith::ops

// Sends the timers of MonolithTimerEmit in this process to `callback`, null for nowhere. Returns
// when no thread is in the callback of before.
extern "C" void MonolithSetTimerCallback(void (*callback)(const char*, float, const char*)) {
  const std::unique_lock lock(monolith::ops::timer_mutex);
  monolith::ops::timer_callback = callback;
}
