// Ops on a file that a graph writes: open, append text or rows, close.
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/wire/wire.h"
#include "ops/system/handles.h"
#include "ops/system/tensor_checks.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/lib/io/record_writer.h"
#include "tensorflow/core/platform/env.h"
#include "tensorflow/core/platform/path.h"

namespace monolith::ops {
namespace {

namespace tf = tensorflow;
using tf::shape_inference::InferenceContext;
using tf::shape_inference::ShapeHandle;

REGISTER_OP("MonolithWritableFile")
    .Output("handle: resource")
    .Attr("filename: string")
    // Tells two files apart that are opened one after the other outside of a graph.
    .Attr("unique_name: string = ''")
    .SetIsStateful()
    .SetShapeFn(tf::shape_inference::ScalarShape)
    .Doc(R"doc(
Opens `filename` for writing, empty, when it first runs, and gives a handle for the ops that append.
Handles of equal `filename` and `unique_name` write one file.
)doc");

REGISTER_OP("MonolithWritableFileAppend")
    .Input("handle: resource")
    .Input("content: string")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle unused;
      for (int i = 0; i < 2; ++i) TF_RETURN_IF_ERROR(c->WithRank(c->input(i), 0, &unused));
      return absl::OkStatus();
    })
    .Doc("Appends `content` to the file; calls of several threads do not mix.");

REGISTER_OP("MonolithWritableFileAppendEntryDump")
    .Input("handle: resource")
    .Input("item_id: int64")
    .Input("bias: float")
    .Input("embedding: float")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle unused;
      for (int i = 0; i < 3; ++i) {
        TF_RETURN_IF_ERROR(c->WithRank(c->input(i), i == 0 ? 0 : 1, &unused));
      }
      return c->WithRank(c->input(3), 2, &unused);
    })
    .Doc(R"doc(
Appends a framed EntryDump for each of `item_id`, [n], whose row is its entry of `bias`, [n],
followed by its row of `embedding`, [n, dim].
)doc");

REGISTER_OP("MonolithWritableFileClose")
    .Input("handle: resource")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle unused;
      return c->WithRank(c->input(0), 0, &unused);
    })
    .Doc("Closes the file with all that was appended; what is appended later fails.");

// Thread-safe; what one call appends stays together.
class FileResource : public tf::ResourceBase {
 public:
  // Creates the directory where it is missing, and empties the file if it exists.
  static absl::Status Open(tf::Env* env, const std::string& name,
                           tf::core::RefCountPtr<FileResource>* resource) {
    const std::string directory(tf::io::Dirname(name));
    if (!directory.empty()) TF_RETURN_IF_ERROR(env->RecursivelyCreateDir(directory));
    std::unique_ptr<tf::WritableFile> file;
    TF_RETURN_IF_ERROR(env->NewWritableFile(name, &file));
    resource->reset(new FileResource(name, std::move(file)));
    return absl::OkStatus();
  }

  ~FileResource() override { Close().IgnoreError(); }

  absl::Status Append(absl::string_view content) {
    const std::lock_guard lock(mutex_);
    if (file_ == nullptr) return ClosedError();
    return NameFile(file_->Append(content));
  }

  absl::Status AppendRecords(const std::vector<std::string>& records) {
    const std::lock_guard lock(mutex_);
    if (file_ == nullptr) return ClosedError();
    for (const std::string& record : records) {
      if (absl::Status s = writer_->WriteRecord(record); !s.ok()) return NameFile(s);
    }
    return absl::OkStatus();
  }

  // Does nothing the second time.
  absl::Status Close() {
    const std::lock_guard lock(mutex_);
    if (file_ == nullptr) return absl::OkStatus();
    const absl::Status flushed = writer_->Close();
    writer_.reset();
    const absl::Status closed = file_->Close();
    file_.reset();
    return NameFile(flushed.ok() ? closed : flushed);
  }

  [[nodiscard]] std::string DebugString() const override { return absl::StrCat("file ", name_); }

 private:
  FileResource(std::string name, std::unique_ptr<tf::WritableFile> file)
      : name_(std::move(name)),
        file_(std::move(file)),
        writer_(std::make_unique<tf::io::RecordWriter>(file_.get())) {}

  [[nodiscard]] absl::Status ClosedError() const {
    return absl::FailedPreconditionError(absl::StrCat(
        "The file ", name_, " is closed already; append before it is closed, or open it anew."));
  }

  [[nodiscard]] absl::Status NameFile(const absl::Status& status) const {
    if (status.ok() || absl::StrContains(status.message(), name_)) return status;
    return absl::Status(status.code(), absl::StrCat(status.message(), " (file ", name_, ")"));
  }

  const std::string name_;
  std::mutex mutex_;
  std::unique_ptr<tf::WritableFile> file_;        // Null when it is closed.
  std::unique_ptr<tf::io::RecordWriter> writer_;  // Writes to file_.
};

// Opens the file when it runs first. The file belongs to the kernel, so a session that is created
// anew opens it anew.
class OpenKernel final : public tf::OpKernel {
 public:
  explicit OpenKernel(tf::OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("filename", &filename_));
    OP_REQUIRES_OK(ctx, CheckFileName("filename", filename_));
  }

  void Compute(tf::OpKernelContext* ctx) override {
    const std::lock_guard lock(mutex_);
    if (file_ == nullptr) {
      OP_REQUIRES_OK(ctx, FileResource::Open(ctx->env(), filename_, &file_));
    }
    tf::Tensor* output = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, {}, &output));
    file_->Ref();  // Becomes the handle's.
    output->scalar<tf::ResourceHandle>()() =
        tf::ResourceHandle::MakeRefCountingHandle(file_.get(), ctx->device()->name());
  }

 private:
  std::string filename_;
  std::mutex mutex_;
  tf::core::RefCountPtr<FileResource> file_;
};

class AppendKernel final : public tf::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(tf::OpKernelContext* ctx) override {
    tf::core::RefCountPtr<FileResource> file;
    OP_REQUIRES_OK(ctx, FindResource(ctx, 0, &file));
    const tf::Tensor& content = ctx->input(1);
    OP_REQUIRES(ctx, tf::TensorShapeUtils::IsScalar(content.shape()),
                absl::InvalidArgumentError(absl::StrCat("`content` must be a scalar, got shape ",
                                                        content.shape().DebugString(), ".")));
    OP_REQUIRES_OK(ctx, file->Append(content.scalar<tf::tstring>()()));
  }
};

// One EntryDump: id = 1, num = 2, a tag per float as in the snapshots of tables.
std::string EncodeEntryDump(std::int64_t id, float bias, const float* row, std::int64_t dim) {
  std::string record;
  core::WireWriter writer(&record);
  writer.Fixed64(1, static_cast<std::uint64_t>(id));
  writer.Float(2, bias);
  for (std::int64_t i = 0; i < dim; ++i) writer.Float(2, row[i]);
  return record;
}

class AppendEntryDumpKernel final : public tf::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(tf::OpKernelContext* ctx) override {
    tf::core::RefCountPtr<FileResource> file;
    OP_REQUIRES_OK(ctx, FindResource(ctx, 0, &file));
    const tf::Tensor& ids = ctx->input(1);
    const tf::Tensor& bias = ctx->input(2);
    const tf::Tensor& rows = ctx->input(3);
    const std::int64_t n = ids.NumElements();
    OP_REQUIRES(ctx,
                ids.dims() == 1 && bias.dims() == 1 && bias.dim_size(0) == n && rows.dims() == 2 &&
                    rows.dim_size(0) == n,
                absl::InvalidArgumentError(absl::StrCat(
                    "There must be one bias and one row of `embedding` per id, got `item_id` of "
                    "shape ",
                    ids.shape().DebugString(), ", `bias` of shape ", bias.shape().DebugString(),
                    " and `embedding` of shape ", rows.shape().DebugString(), ".")));
    const std::int64_t dim = rows.dim_size(1);
    std::vector<std::string> records(n);
    for (std::int64_t i = 0; i < n; ++i) {
      records[i] = EncodeEntryDump(ids.vec<std::int64_t>()(i), bias.vec<float>()(i),
                                   rows.flat<float>().data() + i * dim, dim);
    }
    OP_REQUIRES_OK(ctx, file->AppendRecords(records));
  }
};

class CloseKernel final : public tf::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(tf::OpKernelContext* ctx) override {
    tf::core::RefCountPtr<FileResource> file;
    OP_REQUIRES_OK(ctx, FindResource(ctx, 0, &file));
    OP_REQUIRES_OK(ctx, file->Close());
  }
};

REGISTER_KERNEL_BUILDER(Name("MonolithWritableFile").Device(tf::DEVICE_CPU), OpenKernel);
REGISTER_KERNEL_BUILDER(Name("MonolithWritableFileAppend").Device(tf::DEVICE_CPU), AppendKernel);
REGISTER_KERNEL_BUILDER(Name("MonolithWritableFileAppendEntryDump").Device(tf::DEVICE_CPU),
                        AppendEntryDumpKernel);
REGISTER_KERNEL_BUILDER(Name("MonolithWritableFileClose").Device(tf::DEVICE_CPU), CloseKernel);

}  // namespace
}  // namespace monolith::ops
