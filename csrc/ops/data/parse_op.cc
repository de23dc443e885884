// Serialized Examples, ExampleBatches and Instances as ragged ids and dense tensors.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "absl/log/log.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/data/example_parser.h"
#include "ops/system/parallel.h"
#include "ops/system/sizes.h"
#include "ops/system/status_guard.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/framework/tensor.h"

namespace monolith::ops {
namespace {

namespace tf = tensorflow;
using tf::shape_inference::DimensionHandle;
using tf::shape_inference::InferenceContext;

REGISTER_OP("MonolithParseExamples")
    .Input("serialized: string")
    .Output("values: num_sparse * int64")
    .Output("splits: num_sparse * int64")
    .Output("dense: dense_types")
    .Output("num_skipped: int64")
    .Attr("num_sparse: int >= 0")
    .Attr("format: {'instance', 'example', 'example_batch'}")
    .Attr("sparse_names: list(string)")
    .Attr("sparse_slots: list(int)")
    .Attr("dense_names: list(string)")
    .Attr("dense_widths: list(int)")
    .Attr("dense_types: list({float, int64, string}) >= 0")
    .Attr("num_line_id: int >= 0 = 0")
    .Attr("convert_v1: bool = true")
    .Attr("skip_damaged: bool = false")
    .SetShapeFn([](InferenceContext* c) {
      int num_sparse = 0;
      std::string format;
      std::vector<std::int64_t> widths;
      bool skips = false;
      TF_RETURN_IF_ERROR(c->GetAttr("num_sparse", &num_sparse));
      TF_RETURN_IF_ERROR(c->GetAttr("format", &format));
      TF_RETURN_IF_ERROR(c->GetAttr("dense_widths", &widths));
      TF_RETURN_IF_ERROR(c->GetAttr("skip_damaged", &skips));
      DimensionHandle rows = c->UnknownDim();
      if (format != "example_batch" && !skips && c->RankKnown(c->input(0))) {
        rows = c->NumElements(c->input(0));
      }
      DimensionHandle splits;
      TF_RETURN_IF_ERROR(c->Add(rows, 1, &splits));
      const int num_dense = c->num_outputs() - 2 * num_sparse - 1;
      for (int i = 0; i < num_sparse; ++i) {
        c->set_output(i, c->Vector(InferenceContext::kUnknownDim));
        c->set_output(num_sparse + i, c->Vector(splits));
      }
      for (int i = 0; i < num_dense; ++i) {
        const bool is_known = i < static_cast<int>(widths.size()) && widths[i] >= 0;
        c->set_output(2 * num_sparse + i,
                      c->Matrix(rows, is_known ? c->MakeDim(widths[i]) : c->UnknownDim()));
      }
      c->set_output(2 * num_sparse + num_dense, c->Scalar());
      return absl::OkStatus();
    })
    .Doc(R"doc(
Parses serialized Instances, Examples or ExampleBatches into columns.

A row without a feature has no ids, or zeros and empty strings. `label` and `instance_weight` are
dense columns with the labels and the weight of the record. What nobody has asked for is ignored.

serialized: One record per element; an ExampleBatch has as many rows as it says.
values: The ids of each sparse column, row after row.
splits: Where the ids of each row begin and end, [rows + 1].
dense: [rows, width].
num_skipped: How many records were left out.
sparse_slots: Of Instances: the slot whose fids of version 1 a column takes; -1 goes by name.
num_line_id: This many of the dense columns, the last ones, are fields of the LineId.
convert_v1: Whether fids of version 1 become version 2.
skip_damaged: Leaves out records that cannot be parsed, instead of failing.
)doc");

REGISTER_OP("MonolithParseUnasked")
    .Output("num_fids: int64")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->Scalar());
      return absl::OkStatus();
    })
    .Doc(R"doc(
Returns how many fids this process has left out: those of Instances in slots nobody has asked for.
)doc");

// Of all kernels of the process.
std::atomic<std::int64_t> num_unasked_fids{0};

absl::Status ReadSpec(tf::OpKernelConstruction* ctx, core::ParseSpec* spec) {
  std::string format;
  int num_sparse = 0;
  int num_line_id = 0;
  std::vector<std::string> dense_names;
  std::vector<std::int64_t> dense_widths;
  std::vector<tf::DataType> dense_types;
  TF_RETURN_IF_ERROR(ctx->GetAttr("format", &format));
  TF_RETURN_IF_ERROR(ctx->GetAttr("num_sparse", &num_sparse));
  TF_RETURN_IF_ERROR(ctx->GetAttr("num_line_id", &num_line_id));
  TF_RETURN_IF_ERROR(ctx->GetAttr("sparse_names", &spec->sparse_names));
  TF_RETURN_IF_ERROR(ctx->GetAttr("sparse_slots", &spec->sparse_slots));
  TF_RETURN_IF_ERROR(ctx->GetAttr("dense_names", &dense_names));
  TF_RETURN_IF_ERROR(ctx->GetAttr("dense_widths", &dense_widths));
  TF_RETURN_IF_ERROR(ctx->GetAttr("dense_types", &dense_types));
  TF_RETURN_IF_ERROR(ctx->GetAttr("convert_v1", &spec->convert_v1));
  spec->format = format == "instance"  ? core::RecordFormat::kInstance
                 : format == "example" ? core::RecordFormat::kExample
                                       : core::RecordFormat::kExampleBatch;
  const std::size_t num_dense = dense_names.size();
  if (spec->sparse_names.size() != static_cast<std::size_t>(num_sparse)) {
    return absl::InvalidArgumentError(absl::StrCat("`sparse_names` must have ", num_sparse,
                                                   " names, got ", spec->sparse_names.size(), "."));
  }
  if (dense_widths.size() != num_dense || dense_types.size() != num_dense) {
    return absl::InvalidArgumentError(
        absl::StrCat("`dense_names`, `dense_widths` and `dense_types` must have one element for "
                     "each dense column, got ",
                     num_dense, ", ", dense_widths.size(), " and ", dense_types.size(), "."));
  }
  if (static_cast<std::size_t>(num_line_id) > num_dense) {
    return absl::InvalidArgumentError(
        absl::StrCat("`num_line_id` must be at most the number of dense columns, ", num_dense,
                     ", got ", num_line_id, "."));
  }
  for (std::size_t i = 0; i < num_dense; ++i) {
    core::DenseSpec dense;
    dense.name = dense_names[i];
    dense.width = dense_widths[i];
    dense.type = dense_types[i] == tf::DT_FLOAT   ? core::DenseType::kFloat
                 : dense_types[i] == tf::DT_INT64 ? core::DenseType::kInt64
                                                  : core::DenseType::kString;
    dense.is_line_id = i + num_line_id >= num_dense;
    spec->dense.push_back(std::move(dense));
  }
  return absl::OkStatus();
}

// Consecutive records, which one thread parses.
struct Block {
  core::ParsedRows rows;
  std::int64_t num_skipped = 0;
  absl::Status status;
};

// The blocks of each part of the columns: column i is in part i, modulo the number of parts.
using Parts = std::vector<std::vector<Block>>;

// What a column becomes. Dense ones have no splits.
struct Output {
  tf::Tensor* values = nullptr;
  tf::Tensor* splits = nullptr;
};

class ParseExamplesOp : public tf::OpKernel {
 public:
  explicit ParseExamplesOp(tf::OpKernelConstruction* ctx) : tf::OpKernel(ctx) {
    core::ParseSpec spec;
    OP_REQUIRES_OK(ctx, ReadSpec(ctx, &spec));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("skip_damaged", &skip_damaged_));
    OP_REQUIRES_OK(
        ctx, Guard([&] { parser_ = std::make_unique<core::ExampleParser>(std::move(spec)); }));
  }

  void Compute(tf::OpKernelContext* ctx) override {
    const tf::Tensor& serialized = ctx->input(0);
    const std::int64_t num_records = serialized.NumElements();
    const tf::tstring* records = serialized.flat<tf::tstring>().data();
    const std::int64_t threads = ctx->device()->tensorflow_cpu_worker_threads()->num_threads;
    // More blocks than threads, since a thread may come late. A batch is a block of its own, and
    // divided by columns, too, if there are few. Not where damaged ones are skipped: one part would
    // leave out what another one has read.
    const bool is_batch = parser_->spec().format == core::RecordFormat::kExampleBatch;
    const std::int64_t most = is_batch ? num_records : num_records / kRecordsPerBlock;
    const std::int64_t num_blocks =
        std::max<std::int64_t>(1, std::min(kBlocksPerThread * threads, most));
    const bool is_divided = is_batch && !skip_damaged_ && num_records > 0;
    const std::int64_t num_parts =
        is_divided ? std::max<std::int64_t>(1, kBlocksPerThread * threads / num_blocks) : 1;
    Parts parts(num_parts);
    for (std::vector<Block>& blocks : parts) blocks.resize(num_blocks);
    DealOut(ctx, num_blocks * num_parts, [&](std::int64_t i) {
      const std::int64_t part = i % num_parts;
      const std::int64_t block = i / num_parts;
      ParseBlock(records, block * num_records / num_blocks, (block + 1) * num_records / num_blocks,
                 part, num_parts, &parts[part][block]);
    });
    WriteOutputs(ctx, parts);
    for (std::vector<Block>& blocks : parts) {
      for (Block& block : blocks) PutBack(std::move(block.rows));
    }
  }

 private:
  static constexpr std::int64_t kRecordsPerBlock = 128;
  static constexpr std::int64_t kBlocksPerThread = 4;

  void WriteOutputs(tf::OpKernelContext* ctx, const Parts& parts) {
    for (const std::vector<Block>& blocks : parts) {
      for (const Block& block : blocks) OP_REQUIRES_OK(ctx, block.status);
    }
    // All parts have the same rows.
    std::int64_t num_rows = 0;
    std::int64_t num_skipped = 0;
    for (const Block& block : parts[0]) {
      num_rows += block.rows.num_rows;
      num_skipped += block.num_skipped;
    }
    const core::ParseSpec& spec = parser_->spec();
    const std::size_t num_sparse = spec.sparse_names.size();
    const std::size_t num_columns = num_sparse + spec.dense.size();
    // The blocks with column i. The LineId is one column, which the first part has read.
    const auto blocks_of = [&](std::size_t i) -> const std::vector<Block>& {
      const bool is_line_id = i >= num_sparse && spec.dense[i - num_sparse].is_line_id;
      return parts[is_line_id ? 0 : i % parts.size()];
    };
    std::vector<Output> outputs(num_columns);
    for (std::size_t i = 0; i < num_columns; ++i) {
      OP_REQUIRES_OK(ctx, Allocate(ctx, blocks_of(i), i, num_rows, &outputs[i]));
    }
    const std::size_t num_blocks = parts.size() * parts[0].size();
    const std::size_t num_pieces = std::min(num_blocks, num_columns);
    DealOut(ctx, static_cast<std::int64_t>(num_pieces), [&](std::int64_t piece) {
      for (std::size_t i = piece; i < num_columns; i += num_pieces) {
        if (i < num_sparse) {
          WriteSparse(blocks_of(i), i, &outputs[i]);
        } else {
          WriteDense(blocks_of(i), i - num_sparse, outputs[i].values);
        }
      }
    });
    CountUnasked(parts[0]);
    tf::Tensor* skipped = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(ctx->num_outputs() - 1, {}, &skipped));
    skipped->scalar<std::int64_t>()() = num_skipped;
  }

  // Slots may be left out on purpose, so this is a line in the log, once, and a number.
  void CountUnasked(const std::vector<Block>& blocks) {
    std::int64_t count = 0;
    std::uint64_t slot = 0;
    for (const Block& block : blocks) {
      if (block.rows.num_unasked == 0) continue;
      count += block.rows.num_unasked;
      slot = block.rows.unasked_slot;
    }
    if (count == 0) return;
    num_unasked_fids += count;
    if (!has_told_unasked_.exchange(true)) {
      LOG(WARNING) << "Instances have fids in slots that nobody has asked for, such as slot "
                   << slot << "; they are left out, " << count << " of the first such batch, and "
                   << "counted: monolith.data.parsers.count_unasked_fids().";
    }
  }

  // Columns of earlier calls: their memory need not grow again.
  core::ParsedRows TakeRows() {
    {
      const std::lock_guard lock(mu_);
      if (!spare_.empty()) {
        core::ParsedRows rows = std::move(spare_.back());
        spare_.pop_back();
        return rows;
      }
    }
    return parser_->MakeRows();
  }
  void PutBack(core::ParsedRows rows) {
    parser_->Clear(&rows);
    const std::lock_guard lock(mu_);
    spare_.push_back(std::move(rows));
  }

  void ParseBlock(const tf::tstring* records, std::int64_t begin, std::int64_t end,
                  std::int64_t part, std::int64_t num_parts, Block* block) {
    block->rows = TakeRows();
    for (std::int64_t i = begin; i < end; ++i) {
      const std::string_view record(records[i].data(), records[i].size());
      const absl::Status status = Guard([&] {
        if (num_parts == 1) {
          parser_->Parse(record, &block->rows);
        } else {
          parser_->ParsePart(record, part, num_parts, &block->rows);
        }
      });
      if (status.ok()) continue;
      const bool is_bad_record = status.code() == absl::StatusCode::kInvalidArgument ||
                                 status.code() == absl::StatusCode::kOutOfRange;
      if (skip_damaged_ && is_bad_record) {
        ++block->num_skipped;
        continue;
      }
      block->status =
          absl::Status(status.code(), absl::StrCat("Record ", i, " is no ", NameFormat(),
                                                   " that could be read: ", status.message(), "."));
      return;
    }
  }

  const char* NameFormat() const {
    switch (parser_->spec().format) {
      case core::RecordFormat::kInstance:
        return "Instance";
      case core::RecordFormat::kExample:
        return "Example";
      case core::RecordFormat::kExampleBatch:
        return "ExampleBatch";
    }
    return "";
  }

  absl::Status Allocate(tf::OpKernelContext* ctx, const std::vector<Block>& blocks,
                        std::size_t column, std::int64_t num_rows, Output* output) const {
    const core::ParseSpec& spec = parser_->spec();
    const std::size_t num_sparse = spec.sparse_names.size();
    if (column >= num_sparse) {
      const std::int64_t width = spec.dense[column - num_sparse].width;
      TF_RETURN_IF_ERROR(
          CheckSize("dense_widths", SizeProduct(num_rows, width), ctx->input(0).NumElements()));
      return ctx->allocate_output(static_cast<int>(num_sparse + column), {num_rows, width},
                                  &output->values);
    }
    std::int64_t num_values = 0;
    for (const Block& block : blocks) {
      num_values += static_cast<std::int64_t>(block.rows.sparse[column].values.size());
    }
    TF_RETURN_IF_ERROR(
        ctx->allocate_output(static_cast<int>(column), {num_values}, &output->values));
    return ctx->allocate_output(static_cast<int>(num_sparse + column), {num_rows + 1},
                                &output->splits);
  }

  static void WriteSparse(const std::vector<Block>& blocks, std::size_t column, Output* output) {
    auto* next_value = output->values->flat<std::int64_t>().data();
    auto* next_split = output->splits->flat<std::int64_t>().data();
    *next_split++ = 0;
    std::int64_t before = 0;
    for (const Block& block : blocks) {
      const core::SparseColumn& from = block.rows.sparse[column];
      next_value = std::copy(from.values.begin(), from.values.end(), next_value);
      for (const std::int64_t end : from.ends) *next_split++ = before + end;
      before += static_cast<std::int64_t>(from.values.size());
    }
  }

  void WriteDense(const std::vector<Block>& blocks, std::size_t column, tf::Tensor* dense) const {
    const core::DenseSpec& spec = parser_->spec().dense[column];
    std::int64_t at = 0;
    for (const Block& block : blocks) {
      const core::DenseColumn& from = block.rows.dense[column];
      if (spec.type == core::DenseType::kFloat) {
        std::copy(from.floats.begin(), from.floats.end(), dense->flat<float>().data() + at);
      } else if (spec.type == core::DenseType::kInt64) {
        std::copy(from.integers.begin(), from.integers.end(),
                  dense->flat<std::int64_t>().data() + at);
      } else {
        tf::tstring* strings = dense->flat<tf::tstring>().data() + at;
        for (const std::string_view text : from.strings)
          strings++->assign(text.data(), text.size());
      }
      at += block.rows.num_rows * spec.width;
    }
  }

  std::unique_ptr<core::ExampleParser> parser_;
  bool skip_damaged_ = false;
  std::atomic<bool> has_told_unasked_{false};
  std::mutex mu_;
  std::vector<core::ParsedRows> spare_;  // Guarded by mu_.
};

REGISTER_KERNEL_BUILDER(Name("MonolithParseExamples").Device(tf::DEVICE_CPU), ParseExamplesOp);

class ParseUnaskedOp : public tf::OpKernel {
 public:
  using tf::OpKernel::OpKernel;

  void Compute(tf::OpKernelContext* ctx) override {
    tf::Tensor* count = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, {}, &count));
    count->scalar<std::int64_t>()() = num_unasked_fids;
  }
};

REGISTER_KERNEL_BUILDER(Name("MonolithParseUnasked").Device(tf::DEVICE_CPU), ParseUnaskedOp);

}  // namespace
}  // namespace monolith::ops
