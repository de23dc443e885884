// Rows of ids to the tensors of the dense network in one op, and their gradients back in another.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/layout/embedding_layout.h"
#include "core/layout/layout_config.h"
#include "core/layout/serialized_ids.h"
#include "ops/system/kept_outputs.h"
#include "ops/system/parallel.h"
#include "ops/system/sizes.h"
#include "ops/system/status_guard.h"
#include "ops/system/tensor_checks.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace monolith::ops {
namespace {

namespace tf = tensorflow;
using tf::shape_inference::DimensionHandle;
using tf::shape_inference::InferenceContext;
using tf::shape_inference::ShapeHandle;

absl::Status CheckCount(const char* name, std::int64_t count, std::size_t expected) {
  if (count == static_cast<std::int64_t>(expected)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("`", name, "` must be ", expected,
                                                 ", the number of tensors in all layouts of "
                                                 "`feature_cfgs`, got ",
                                                 count, "."));
}

absl::Status ReadLayoutConfig(const std::string& serialized, core::LayoutConfig* config) {
  TF_RETURN_IF_ERROR(Guard([&] { *config = core::ParseLayoutConfig(serialized); }));
  if (!config->outputs.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError("`feature_cfgs` has no layouts, so there is nothing to make.");
}

absl::Status LayoutShape(InferenceContext* c) {
  std::string serialized;
  TF_RETURN_IF_ERROR(c->GetAttr("feature_cfgs", &serialized));
  core::LayoutConfig config;
  TF_RETURN_IF_ERROR(ReadLayoutConfig(serialized, &config));
  TF_RETURN_IF_ERROR(CheckCount("num_out", c->num_outputs(), config.outputs.size()));
  std::vector<ShapeHandle> given;
  TF_RETURN_IF_ERROR(c->input("batch_size", &given));
  // The batch is the only input that says more than its own size; it comes after the offsets.
  DimensionHandle batch = c->UnknownDim();
  for (int i = 0; i < c->num_inputs(); ++i) {
    const tf::Tensor* value = c->input(i).SameHandle(given[0]) ? c->input_tensor(i) : nullptr;
    if (value != nullptr && value->dtype() == tf::DT_INT32 && value->NumElements() == 1) {
      const std::int32_t size = value->flat<std::int32_t>()(0);
      if (size >= 0) batch = c->MakeDim(size);
    }
  }
  for (std::size_t output = 0; output < config.outputs.size(); ++output) {
    std::vector<DimensionHandle> dims = {batch};
    for (const std::int64_t dim : config.outputs[output].dims) dims.push_back(c->MakeDim(dim));
    c->set_output(static_cast<int>(output), c->MakeShape(dims));
  }
  return absl::OkStatus();
}

absl::Status LayoutGradShape(InferenceContext* c) {
  std::vector<ShapeHandle> embeddings;
  TF_RETURN_IF_ERROR(c->input("embeddings_list", &embeddings));
  for (std::size_t i = 0; i < embeddings.size(); ++i) {
    c->set_output(static_cast<int>(i), embeddings[i]);
  }
  return absl::OkStatus();
}

constexpr char kLayoutDoc[] = R"doc(
Combines the rows of features and lays them out as the tensors of the dense network.

feature_cfgs says which features there are and what is made of their rows: a serialized
monolith.io.proto.FeatureConfigs. The offsets say where the rows of each example are; the upper half
of a fid_offset names an embedding, the lower half a row in it (versions 1 and 2) or a float.

embeddings_list: Rows; table by table, and for each table server by server.
nfl_offset: For each feature, sorted by name, its first element of feature_offset; with bit 31 set
  one element counts for the whole batch.
feature_offset: For each example of a feature its first element of fid_offset.
tensors: Those of the layouts, sorted by name.
)doc";

constexpr char kLayoutGradDoc[] = R"doc(
Carries the gradients of layouts back to the rows that they were made of.

tensors_grad: Of the tensors of the layouts, sorted by name.
embeddings_grad_list: Shaped as embeddings_list.
)doc";

#define MONOLITH_LAYOUT_OFFSETS       \
  .Input("fid_offset: uint64")        \
      .Input("feature_offset: int32") \
      .Input("nfl_offset: uint32")    \
      .Input("batch_size: int32")
#define MONOLITH_LAYOUT_SIZES       \
  .Input("nfl_size: int32")         \
      .Input("feature_size: int32") \
      .Input("fid_size: int32")     \
      .Input("emb_size: int32")
#define MONOLITH_LAYOUT_ATTRS \
  .Attr("M: int >= 1").Attr("variant_type: string").Attr("feature_cfgs: string")
#define MONOLITH_LAYOUT_SERVERS .Attr("ps_num: int >= 1").Attr("parallel_flag: int = 0")
#define MONOLITH_LAYOUT_TENSORS       \
  .Output("tensors: num_out * float") \
      .Attr("num_out: int >= 1")      \
      .SetShapeFn(LayoutShape)        \
      .Doc(kLayoutDoc)
#define MONOLITH_LAYOUT_GRADS                    \
  .Input("tensors_grad: num_input * float")      \
      .Output("embeddings_grad_list: M * float") \
      .Attr("num_input: int >= 1")               \
      .SetShapeFn(LayoutGradShape)               \
      .Doc(kLayoutGradDoc)

// clang-format off
REGISTER_OP("MonolithEmbeddingToLayout")
    .Input("embeddings_list: M * float")
    MONOLITH_LAYOUT_OFFSETS MONOLITH_LAYOUT_ATTRS MONOLITH_LAYOUT_TENSORS;
REGISTER_OP("MonolithEmbeddingToLayoutV2")
    .Input("embeddings_list: M * float")
    .Input("fid_list_row_split: M * int64")
    MONOLITH_LAYOUT_OFFSETS MONOLITH_LAYOUT_ATTRS MONOLITH_LAYOUT_SERVERS MONOLITH_LAYOUT_TENSORS;
REGISTER_OP("MonolithEmbeddingToLayoutV3")
    .Input("embeddings_list: M * float")
    MONOLITH_LAYOUT_OFFSETS MONOLITH_LAYOUT_ATTRS MONOLITH_LAYOUT_SERVERS MONOLITH_LAYOUT_TENSORS;
REGISTER_OP("MonolithEmbeddingToLayoutV4")
    .Input("embeddings_list: M * float")
    .Input("fid_list_emb_row_lenth: int32")
    MONOLITH_LAYOUT_OFFSETS MONOLITH_LAYOUT_ATTRS MONOLITH_LAYOUT_SERVERS MONOLITH_LAYOUT_TENSORS;
REGISTER_OP("MonolithEmbeddingToLayoutV5")
    .Input("embeddings_list: M * float")
    MONOLITH_LAYOUT_OFFSETS MONOLITH_LAYOUT_SIZES
    MONOLITH_LAYOUT_ATTRS MONOLITH_LAYOUT_SERVERS MONOLITH_LAYOUT_TENSORS;
REGISTER_OP("MonolithEmbeddingToLayoutGrad")
    .Input("embeddings_list: M * float")
    MONOLITH_LAYOUT_OFFSETS MONOLITH_LAYOUT_ATTRS MONOLITH_LAYOUT_GRADS;
REGISTER_OP("MonolithEmbeddingToLayoutGradV2")
    .Input("embeddings_list: M * float")
    .Input("fid_list_row_split: M * int64")
    MONOLITH_LAYOUT_OFFSETS MONOLITH_LAYOUT_ATTRS MONOLITH_LAYOUT_SERVERS MONOLITH_LAYOUT_GRADS;
REGISTER_OP("MonolithEmbeddingToLayoutGradV3")
    .Input("embeddings_list: M * float")
    MONOLITH_LAYOUT_OFFSETS MONOLITH_LAYOUT_ATTRS MONOLITH_LAYOUT_SERVERS MONOLITH_LAYOUT_GRADS;
REGISTER_OP("MonolithEmbeddingToLayoutGradV4")
    .Input("embeddings_list: M * float")
    .Input("fid_list_emb_row_lenth: int32")
    MONOLITH_LAYOUT_OFFSETS MONOLITH_LAYOUT_ATTRS MONOLITH_LAYOUT_SERVERS MONOLITH_LAYOUT_GRADS;
REGISTER_OP("MonolithEmbeddingToLayoutGradV5")
    .Input("embeddings_list: M * float")
    MONOLITH_LAYOUT_OFFSETS MONOLITH_LAYOUT_ATTRS MONOLITH_LAYOUT_SERVERS MONOLITH_LAYOUT_GRADS;
// clang-format on

// What a call of any version says about its rows, in one form.
class LayoutInputs {
 public:
  // Reads and checks everything but the rows' own floats.
  absl::Status Read(tf::OpKernelContext* ctx, const core::LayoutConfig& config, int version,
                    std::int64_t num_servers) {
    const tf::Tensor* fid = nullptr;
    const tf::Tensor* feature = nullptr;
    const tf::Tensor* nfl = nullptr;
    const tf::Tensor* batch = nullptr;
    TF_RETURN_IF_ERROR(ctx->input_list("embeddings_list", &embeddings));
    TF_RETURN_IF_ERROR(ctx->input("fid_offset", &fid));
    TF_RETURN_IF_ERROR(ctx->input("feature_offset", &feature));
    TF_RETURN_IF_ERROR(ctx->input("nfl_offset", &nfl));
    TF_RETURN_IF_ERROR(ctx->input("batch_size", &batch));
    TF_RETURN_IF_ERROR(CheckNumElements(*batch, "batch_size", 1, "one request"));
    offsets.fid = {fid->flat<std::uint64_t>().data(), static_cast<std::size_t>(fid->NumElements())};
    offsets.feature = {feature->flat<std::int32_t>().data(),
                       static_cast<std::size_t>(feature->NumElements())};
    offsets.nfl = {nfl->flat<std::uint32_t>().data(), static_cast<std::size_t>(nfl->NumElements())};
    offsets.batch_size = batch->flat<std::int32_t>()(0);
    switch (version) {
      case 1:
        return AddMatrices();
      case 2:
        return AddFeatureBlocks(ctx, config, num_servers);
      case 4:
        return AddJoinedBlocks(ctx, config, num_servers);
      default:
        for (int i = 0; i < embeddings.size(); ++i) AddList(i, 0);
        return absl::OkStatus();
    }
  }

  // Checks what the fifth version says about its one request.
  absl::Status CheckSizes(tf::OpKernelContext* ctx) const {
    TF_RETURN_IF_ERROR(CheckOne(ctx, "nfl_size", offsets.nfl.size));
    TF_RETURN_IF_ERROR(CheckOne(ctx, "feature_size", offsets.feature.size));
    TF_RETURN_IF_ERROR(CheckOne(ctx, "fid_size", offsets.fid.size));
    const tf::Tensor* sizes = nullptr;
    TF_RETURN_IF_ERROR(ctx->input("emb_size", &sizes));
    TF_RETURN_IF_ERROR(CheckNumElements(*sizes, "emb_size", embeddings.size(),
                                        "one for each of `embeddings_list`"));
    for (int i = 0; i < embeddings.size(); ++i) {
      if (sizes->flat<std::int32_t>()(i) != embeddings[i].NumElements()) {
        return absl::InvalidArgumentError(absl::StrCat(
            "`emb_size` says that embedding ", i, " has ", sizes->flat<std::int32_t>()(i),
            " floats, but it has ", embeddings[i].NumElements(), "."));
      }
    }
    return absl::OkStatus();
  }

  tf::OpInputList embeddings;
  core::LayoutOffsets offsets;
  std::vector<core::RowBlock> blocks;

 private:
  static absl::Status CheckOne(tf::OpKernelContext* ctx, const char* name, std::size_t expected) {
    const tf::Tensor* size = nullptr;
    TF_RETURN_IF_ERROR(ctx->input(name, &size));
    TF_RETURN_IF_ERROR(CheckNumElements(*size, name, 1, "one request"));
    if (size->flat<std::int32_t>()(0) == static_cast<std::int64_t>(expected)) {
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(absl::StrCat("`", name, "` is ",
                                                   size->flat<std::int32_t>()(0),
                                                   ", but the request has ", expected, "."));
  }

  void AddList(int i, std::int64_t row_width) {
    core::RowBlock block;
    block.list = static_cast<std::size_t>(i);
    block.size = embeddings[i].NumElements();
    block.row_width = row_width;
    blocks.push_back(block);
  }

  absl::Status AddMatrices() {
    for (int i = 0; i < embeddings.size(); ++i) {
      TF_RETURN_IF_ERROR(CheckRank(embeddings[i], "embeddings_list", 2));
      // Without floats there is no row, and a width of 0 would mean another thing.
      AddList(i, std::max<std::int64_t>(1, embeddings[i].dim_size(1)));
    }
    return absl::OkStatus();
  }

  static absl::Status CheckLists(int given, const core::LayoutConfig& config,
                                 std::int64_t num_servers) {
    if (given == SizeProduct(static_cast<std::int64_t>(config.tables.size()), num_servers)) {
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(absl::StrCat("There must be a list for each of ",
                                                   config.tables.size(), " tables and ",
                                                   num_servers, " servers, got ", given, "."));
  }

  absl::Status AddFeatureBlocks(tf::OpKernelContext* ctx, const core::LayoutConfig& config,
                                std::int64_t num_servers) {
    TF_RETURN_IF_ERROR(CheckLists(embeddings.size(), config, num_servers));
    tf::OpInputList row_splits;
    TF_RETURN_IF_ERROR(ctx->input_list("fid_list_row_split", &row_splits));
    std::vector<std::vector<std::int64_t>> dims(config.tables.size());
    for (const core::LayoutFeature& feature : config.features) {
      dims[feature.table_index].push_back(feature.dim);
    }
    for (int list = 0; list < embeddings.size(); ++list) {
      const auto& dims_here = dims[static_cast<std::size_t>(list / num_servers)];
      const auto splits = Flat<std::int64_t>(row_splits[list]);
      TF_RETURN_IF_ERROR(CheckNumElements(row_splits[list], "fid_list_row_split",
                                          static_cast<std::int64_t>(dims_here.size()) + 1,
                                          "one more than the table has features"));
      TF_RETURN_IF_ERROR(CheckRowSplits(splits, "fid_list_row_split", splits.back()));
      std::int64_t first = 0;
      for (std::size_t i = 0; i < dims_here.size(); ++i) {
        core::RowBlock block;
        block.list = static_cast<std::size_t>(list);
        block.first = first;
        block.size = SizeProduct(splits[i + 1] - splits[i], dims_here[i]);
        block.row_width = dims_here[i];
        first = SizeSum(first, block.size);
        blocks.push_back(block);
      }
      if (first != embeddings[list].NumElements()) {
        return absl::InvalidArgumentError(absl::StrCat(
            "The rows of `fid_list_row_split` ", list, " have ", first, " floats, but embedding ",
            list, " has ", embeddings[list].NumElements(), "."));
      }
    }
    return absl::OkStatus();
  }

  absl::Status AddJoinedBlocks(tf::OpKernelContext* ctx, const core::LayoutConfig& config,
                               std::int64_t num_servers) {
    const tf::Tensor* given = nullptr;
    TF_RETURN_IF_ERROR(ctx->input("fid_list_emb_row_lenth", &given));
    if (embeddings.size() != 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("Version 4 takes all rows as one embedding, got ", embeddings.size(), "."));
    }
    const auto lengths = Flat<std::int32_t>(*given);
    TF_RETURN_IF_ERROR(CheckLists(static_cast<int>(lengths.size()), config, num_servers));
    blocks.resize(lengths.size());
    std::int64_t first = 0;
    for (std::size_t i = 0; i < lengths.size(); ++i) {
      if (lengths[i] < 0) {
        return absl::InvalidArgumentError(
            absl::StrCat("`fid_list_emb_row_lenth` must not be negative, but element ", i, " is ",
                         lengths[i], "."));
      }
      // Here server by server, in the offsets table by table.
      const std::size_t table = i % config.tables.size();
      const std::size_t server = i / config.tables.size();
      core::RowBlock& block = blocks[table * static_cast<std::size_t>(num_servers) + server];
      block.first = first;
      block.size = lengths[i];
      first += lengths[i];
    }
    if (first == embeddings[0].NumElements()) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("`fid_list_emb_row_lenth` adds up to ", first,
                                                   " floats, but the embedding has ",
                                                   embeddings[0].NumElements(), "."));
  }
};

// The attributes that all versions have.
class LayoutKernel : public tf::OpKernel {
 public:
  LayoutKernel(tf::OpKernelConstruction* ctx, int version) : tf::OpKernel(ctx), version_(version) {
    std::string serialized;
    std::string variant_type;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("feature_cfgs", &serialized));
    OP_REQUIRES_OK(ctx, ReadLayoutConfig(serialized, &config_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("variant_type", &variant_type));
    OP_REQUIRES_OK(ctx, Guard([&] { (void)core::ParseExampleFormat(variant_type); }));
    if (version_ == 1) return;
    std::int64_t parallel_flag = 0;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("ps_num", &num_servers_));
    OP_REQUIRES(ctx, num_servers_ <= kMostShards,
                absl::InvalidArgumentError(absl::StrCat("`ps_num` must be at most ", kMostShards,
                                                        ", got ", num_servers_, ".")));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("parallel_flag", &parallel_flag));
    OP_REQUIRES(ctx, parallel_flag == 0 || parallel_flag == 1,
                absl::InvalidArgumentError(
                    absl::StrCat("`parallel_flag` must be 0, for all threads, or 1, for one, got ",
                                 parallel_flag, ".")));
    one_thread_ = parallel_flag == 1;
  }

 protected:
  // About what it costs to move the floats of one example.
  [[nodiscard]] std::int64_t CyclesPerExample(const LayoutInputs& inputs) const {
    std::int64_t floats = 0;
    for (const core::LayoutFeature& feature : config_.features) floats += feature.dim;
    const auto num_ids = static_cast<std::int64_t>(inputs.offsets.fid.size);
    const auto num_features = static_cast<std::int64_t>(config_.features.size());
    const std::int64_t per_id = 10 + floats / num_features;
    const std::int64_t ids = num_ids / std::max<std::int64_t>(1, inputs.offsets.batch_size) + 1;
    return SizeProduct(std::min<std::int64_t>(per_id, 1 << 20),
                       std::min<std::int64_t>(ids, 1 << 20));
  }

  core::LayoutConfig config_;
  KeptOutputs outputs_;
  const int version_;
  std::int64_t num_servers_ = 1;
  bool one_thread_ = false;
};

template <int kVersion>
class EmbeddingToLayoutOp final : public LayoutKernel {
 public:
  explicit EmbeddingToLayoutOp(tf::OpKernelConstruction* ctx) : LayoutKernel(ctx, kVersion) {
    if (!ctx->status().ok()) return;
    OP_REQUIRES_OK(ctx, CheckCount("num_out", ctx->num_outputs(), config_.outputs.size()));
  }

  void Compute(tf::OpKernelContext* ctx) override {
    LayoutInputs inputs;
    OP_REQUIRES_OK(ctx, inputs.Read(ctx, config_, kVersion, num_servers_));
    if (kVersion == 5) OP_REQUIRES_OK(ctx, inputs.CheckSizes(ctx));
    OP_REQUIRES_OK(ctx, Guard([&] { ComputeChecked(ctx, inputs); }));
  }

 private:
  void ComputeChecked(tf::OpKernelContext* ctx, const LayoutInputs& inputs) {
    const core::LayoutIndex index(config_, inputs.offsets);
    std::vector<const float*> lists;
    for (const tf::Tensor& rows : inputs.embeddings) lists.push_back(rows.flat<float>().data());
    const auto rows = index.FindRows<const float>(config_, inputs.blocks, lists.data());
    const std::int64_t batch = index.batch_size();
    std::int64_t num_floats = 0;
    for (const core::LayoutOutput& output : config_.outputs) {
      num_floats = SizeSum(num_floats, SizeProduct(batch, output.width));
    }
    const auto num_in = static_cast<std::int64_t>(rows.size() + inputs.offsets.feature.size);
    OP_REQUIRES_OK(ctx, CheckSize("batch_size", num_floats, num_in));
    std::vector<float*> outputs(config_.outputs.size(), nullptr);
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      std::vector<std::int64_t> dims = {batch};
      dims.insert(dims.end(), config_.outputs[i].dims.begin(), config_.outputs[i].dims.end());
      tf::TensorShape shape;
      OP_REQUIRES_OK(ctx, MakeShape(dims, &shape));
      OP_REQUIRES_OK(ctx, outputs_.Allocate(ctx, static_cast<int>(i), shape, &outputs[i]));
    }
    if (one_thread_) {
      core::MakeLayouts(config_, index, rows, 0, batch, outputs.data());
      return;
    }
    ParallelFor(ctx, batch, CyclesPerExample(inputs), [&](std::int64_t first, std::int64_t last) {
      core::MakeLayouts(config_, index, rows, first, last, outputs.data());
    });
  }
};

template <int kVersion>
class EmbeddingToLayoutGradOp final : public LayoutKernel {
 public:
  explicit EmbeddingToLayoutGradOp(tf::OpKernelConstruction* ctx) : LayoutKernel(ctx, kVersion) {}

  void Compute(tf::OpKernelContext* ctx) override {
    LayoutInputs inputs;
    OP_REQUIRES_OK(ctx, inputs.Read(ctx, config_, kVersion, num_servers_));
    tf::OpInputList grads;
    OP_REQUIRES_OK(ctx, ctx->input_list("tensors_grad", &grads));
    OP_REQUIRES_OK(ctx, CheckCount("num_input", grads.size(), config_.outputs.size()));
    std::vector<const float*> output_gradients;
    for (int i = 0; i < grads.size(); ++i) {
      const std::int64_t width = config_.outputs[static_cast<std::size_t>(i)].width;
      OP_REQUIRES(ctx,
                  inputs.offsets.batch_size >= 0 &&
                      grads[i].NumElements() == SizeProduct(inputs.offsets.batch_size, width),
                  absl::InvalidArgumentError(
                      absl::StrCat("Gradient ", i, " of `tensors_grad` must have ", width,
                                   " floats for each of ", inputs.offsets.batch_size,
                                   " examples, got shape ", grads[i].shape().DebugString(), ".")));
      output_gradients.push_back(grads[i].flat<float>().data());
    }
    OP_REQUIRES_OK(ctx, Guard([&] { ComputeChecked(ctx, inputs, output_gradients); }));
  }

 private:
  void ComputeChecked(tf::OpKernelContext* ctx, const LayoutInputs& inputs,
                      const std::vector<const float*>& output_gradients) {
    const core::LayoutIndex index(config_, inputs.offsets);
    std::vector<float*> lists(static_cast<std::size_t>(inputs.embeddings.size()), nullptr);
    for (int i = 0; i < inputs.embeddings.size(); ++i) {
      const tf::TensorShape& shape = inputs.embeddings[i].shape();
      OP_REQUIRES_OK(ctx, outputs_.Allocate(ctx, i, shape, &lists[static_cast<std::size_t>(i)]));
      std::fill_n(lists[static_cast<std::size_t>(i)], shape.num_elements(), 0.0F);
    }
    const auto rows = index.FindRows<float>(config_, inputs.blocks, lists.data());
    const std::int64_t num_parts =
        one_thread_ ? 1 : ctx->device()->tensorflow_cpu_worker_threads()->num_threads;
    const std::int64_t cycles_per_part =
        SizeProduct(CyclesPerExample(inputs), index.batch_size()) / num_parts;
    ParallelFor(ctx, num_parts, cycles_per_part, [&](std::int64_t first, std::int64_t last) {
      // A thread that has all parts walks over the ids once.
      if (first == 0 && last == num_parts) {
        core::AddLayoutGradients(config_, index, rows, output_gradients.data(), 0, 1);
        return;
      }
      for (; first < last; ++first) {
        core::AddLayoutGradients(config_, index, rows, output_gradients.data(),
                                 static_cast<std::size_t>(first),
                                 static_cast<std::size_t>(num_parts));
      }
    });
  }
};

REGISTER_KERNEL_BUILDER(Name("MonolithEmbeddingToLayout").Device(tf::DEVICE_CPU),
                        EmbeddingToLayoutOp<1>);
REGISTER_KERNEL_BUILDER(Name("MonolithEmbeddingToLayoutV2").Device(tf::DEVICE_CPU),
                        EmbeddingToLayoutOp<2>);
REGISTER_KERNEL_BUILDER(Name("MonolithEmbeddingToLayoutV3").Device(tf::DEVICE_CPU),
                        EmbeddingToLayoutOp<3>);
REGISTER_KERNEL_BUILDER(Name("MonolithEmbeddingToLayoutV4").Device(tf::DEVICE_CPU),
                        EmbeddingToLayoutOp<4>);
REGISTER_KERNEL_BUILDER(Name("MonolithEmbeddingToLayoutV5").Device(tf::DEVICE_CPU),
                        EmbeddingToLayoutOp<5>);
REGISTER_KERNEL_BUILDER(Name("MonolithEmbeddingToLayoutGrad").Device(tf::DEVICE_CPU),
                        EmbeddingToLayoutGradOp<1>);
REGISTER_KERNEL_BUILDER(Name("MonolithEmbeddingToLayoutGradV2").Device(tf::DEVICE_CPU),
                        EmbeddingToLayoutGradOp<2>);
REGISTER_KERNEL_BUILDER(Name("MonolithEmbeddingToLayoutGradV3").Device(tf::DEVICE_CPU),
                        EmbeddingToLayoutGradOp<3>);
REGISTER_KERNEL_BUILDER(Name("MonolithEmbeddingToLayoutGradV4").Device(tf::DEVICE_CPU),
                        EmbeddingToLayoutGradOp<4>);
REGISTER_KERNEL_BUILDER(Name("MonolithEmbeddingToLayoutGradV5").Device(tf::DEVICE_CPU),
                        EmbeddingToLayoutGradOp<5>);

}  // namespace
}  // namespace monolith::ops
