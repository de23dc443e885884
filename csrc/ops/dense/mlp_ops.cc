// Fully connected layers in a row in one op, and their gradients in another.
//
// TensorFlow's own ops go over the whole batch once for each product, bias and ReLU, and wake up
// threads for each. Here a thread takes some rows through all layers, while they are in its cache.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/dense/matmul.h"
#include "ops/system/crew.h"
#include "ops/system/sizes.h"
#include "ops/system/tensor_checks.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace monolith::ops {
namespace {

namespace tf = tensorflow;
namespace shapes = tensorflow::shape_inference;

REGISTER_OP("MonolithMlp")
    .Input("inputs: float")
    .Input("kernels: N * float")
    .Input("biases: N * float")
    .Output("outputs: N * float")
    .Attr("N: int >= 1")
    .Attr("relu: list(bool)")
    .SetShapeFn([](shapes::InferenceContext* c) {
      const int n = c->num_outputs();
      shapes::ShapeHandle rows, kernel;
      shapes::DimensionHandle unused;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 2, &rows));
      for (int i = 0; i < n; ++i) {
        TF_RETURN_IF_ERROR(c->WithRank(c->input(1 + i), 2, &kernel));
        TF_RETURN_IF_ERROR(c->Merge(c->Dim(rows, 1), c->Dim(kernel, 0), &unused));
        rows = c->Matrix(c->Dim(rows, 0), c->Dim(kernel, 1));
        c->set_output(i, rows);
      }
      return absl::OkStatus();
    })
    .Doc(R"doc(
Returns what comes out of each of N layers, max(rows x kernel + bias, 0) or without the maximum.

inputs: [batch, dim], the rows of the first layer; the others take what the one before gives.
kernels: [dim, units] each.
biases: [units] each, or empty for none.
relu: Whether a layer takes the maximum, for each of them.
)doc");

REGISTER_OP("MonolithMlpGradient")
    .Input("inputs: float")
    .Input("kernels: N * float")
    .Input("biases: N * float")
    .Input("outputs: N * float")
    .Input("grad: float")
    .Output("inputs_grad: float")
    .Output("kernel_grads: N * float")
    .Output("bias_grads: N * float")
    .Attr("N: int >= 1")
    .Attr("relu: list(bool)")
    .SetShapeFn([](shapes::InferenceContext* c) {
      // The outputs are as the first inputs: inputs, kernels, biases.
      for (int i = 0; i < c->num_outputs(); ++i) c->set_output(i, c->input(i));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Returns the gradients by what MonolithMlp takes, from that by the outputs of its last layer.
)doc");

// Rows in pieces. They do not depend on the number of threads, so no result does either.
class Pieces {
 public:
  Pieces(std::int64_t rows, std::int64_t rows_per_piece)
      : rows_(rows), rows_per_piece_(rows_per_piece) {}
  [[nodiscard]] std::int64_t size() const {
    return (rows_ + rows_per_piece_ - 1) / rows_per_piece_;
  }
  [[nodiscard]] std::int64_t first(std::int64_t piece) const { return piece * rows_per_piece_; }
  [[nodiscard]] std::int64_t count(std::int64_t piece) const {
    return std::min(rows_per_piece_, rows_ - first(piece));
  }

 private:
  std::int64_t rows_;
  std::int64_t rows_per_piece_;
};

// Whole blocks of core::Multiply, some ten microseconds for usual layers. A piece of a kernel's
// gradient is this wide since it copies the inputs it takes, as much for few columns as for many.
constexpr std::int64_t kBatchRows = 4 * core::kBlockRows;
constexpr std::int64_t kKernelRows = 4 * core::kBlockRows;
constexpr std::int64_t kKernelColumns = 8 * core::kPanelColumns;

// A thread wakes up in about the time of this many multiplications.
constexpr std::int64_t kMultiplicationsPerHelper = 2'000'000;

const float* Data(const tf::Tensor& tensor) { return tensor.flat<float>().data(); }
float* Data(tf::Tensor* tensor) { return tensor->flat<float>().data(); }

// Floats that a thread keeps from call to call, at least `n`.
float* FloatsOfThisThread(std::size_t n) {
  thread_local std::vector<float> floats;
  if (floats.size() < n) floats.resize(n);
  return floats.data();
}

absl::Status CheckMatrix(const std::string& name, const tf::Tensor& tensor, std::int64_t rows,
                         std::int64_t columns) {
  if (tensor.dims() == 2 && tensor.dim_size(0) == rows && tensor.dim_size(1) == columns) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("`", name, "` must have the shape [", rows, ",",
                                                 columns, "], got ", tensor.shape().DebugString()));
}

absl::Status CheckDimension(const char* what, std::int64_t size) {
  if (size <= kMostPerDimension) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(what, " must be at most ", kMostPerDimension, ", got ", size, "."));
}

struct Layer {
  std::int64_t dim, units;
  const float* kernel;  // [dim, units]
  const float* bias;    // [units], or nullptr.
  bool relu;
};

class MlpOpBase : public tf::OpKernel {
 public:
  explicit MlpOpBase(tf::OpKernelConstruction* ctx) : tf::OpKernel(ctx) {
    int n = 0;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("N", &n));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("relu", &relu_));
    OP_REQUIRES(ctx, static_cast<int>(relu_.size()) == n,
                absl::InvalidArgumentError(absl::StrCat("`relu` must have one value for each of ",
                                                        n, " layers, got ", relu_.size())));
  }

 protected:
  [[nodiscard]] int num_layers() const { return static_cast<int>(relu_.size()); }

  // Checks inputs, kernels and biases, which both ops have in front.
  absl::Status GetLayers(tf::OpKernelContext* ctx, std::vector<Layer>* layers) const {
    const tf::Tensor& inputs = ctx->input(0);
    if (inputs.dims() != 2) {
      return absl::InvalidArgumentError(
          absl::StrCat("`inputs` must be [batch, dim], got ", inputs.shape().DebugString()));
    }
    std::int64_t dim = inputs.dim_size(1);
    TF_RETURN_IF_ERROR(CheckDimension("The batch", inputs.dim_size(0)));
    TF_RETURN_IF_ERROR(CheckDimension("The width of `inputs`", dim));
    for (int i = 0; i < num_layers(); ++i) {
      const tf::Tensor& kernel = ctx->input(1 + i);
      const tf::Tensor& bias = ctx->input(1 + num_layers() + i);
      if (kernel.dims() != 2 || kernel.dim_size(0) != dim) {
        return absl::InvalidArgumentError(absl::StrCat("The kernel of layer ", i, " must be [", dim,
                                                       ", units], as wide as its ", "inputs, got ",
                                                       kernel.shape().DebugString()));
      }
      const std::int64_t units = kernel.dim_size(1);
      TF_RETURN_IF_ERROR(CheckDimension("The width of a kernel", units));
      const bool has_bias = bias.NumElements() > 0;
      if (has_bias && bias.NumElements() != units) {
        return absl::InvalidArgumentError(absl::StrCat("The bias of layer ", i, " must have ",
                                                       units, " elements or none, got ", "shape ",
                                                       bias.shape().DebugString()));
      }
      layers->push_back({dim, units, Data(kernel), has_bias ? Data(bias) : nullptr, relu_[i]});
      dim = units;
    }
    return absl::OkStatus();
  }

  // Room for the right sides of products, one for each layer.
  static absl::Status AllocatePacked(
      tf::OpKernelContext* ctx, const std::vector<std::pair<std::int64_t, std::int64_t>>& sizes,
      tf::Tensor* storage, std::vector<core::PackedMatrix>* packed) {
    std::size_t floats = 0;
    for (const auto& [depth, columns] : sizes) floats += core::PackedFloats(depth, columns);
    TF_RETURN_IF_ERROR(ctx->allocate_temp(
        tf::DT_FLOAT, tf::TensorShape({static_cast<std::int64_t>(floats)}), storage));
    float* at = Data(storage);
    for (const auto& [depth, columns] : sizes) {
      packed->emplace_back(depth, columns, at);
      at += core::PackedFloats(depth, columns);
    }
    return absl::OkStatus();
  }

  static std::int64_t UsefulHelpers(const std::vector<Layer>& layers, std::int64_t batch) {
    std::int64_t multiplications = 0;
    for (const Layer& layer : layers) multiplications += batch * layer.dim * layer.units;
    return multiplications / kMultiplicationsPerHelper;
  }

  std::vector<bool> relu_;
};

class MlpOp final : public MlpOpBase {
 public:
  using MlpOpBase::MlpOpBase;

  void Compute(tf::OpKernelContext* ctx) override {
    std::vector<Layer> layers;
    OP_REQUIRES_OK(ctx, GetLayers(ctx, &layers));
    const std::int64_t batch = ctx->input(0).dim_size(0);
    std::vector<float*> outputs;
    std::vector<std::pair<std::int64_t, std::int64_t>> sizes;
    for (const Layer& layer : layers) {
      OP_REQUIRES_OK(ctx, CheckSize("kernels", SizeProduct(batch, layer.units),
                                    ctx->input(0).NumElements() + layer.dim * layer.units));
      tf::Tensor* output = nullptr;
      OP_REQUIRES_OK(ctx, ctx->allocate_output(static_cast<int>(outputs.size()),
                                               tf::TensorShape({batch, layer.units}), &output));
      outputs.push_back(Data(output));
      sizes.emplace_back(layer.dim, layer.units);
    }
    tf::Tensor storage;
    std::vector<core::PackedMatrix> kernels;
    OP_REQUIRES_OK(ctx, AllocatePacked(ctx, sizes, &storage, &kernels));

    Crew crew(ctx, UsefulHelpers(layers, batch));
    for (std::size_t l = 0; l < layers.size(); ++l) {
      kernels[l].PackRows(core::RowMajor(layers[l].kernel, layers[l].units), 0, layers[l].dim);
    }
    const Pieces pieces(batch, kBatchRows);
    crew.ForEach(pieces.size(), [&](std::int64_t i) {
      const std::int64_t first = pieces.first(i);
      const float* rows = Data(ctx->input(0)) + first * layers[0].dim;
      for (std::size_t l = 0; l < layers.size(); ++l) {
        const Layer& layer = layers[l];
        float* out = outputs[l] + first * layer.units;
        core::Multiply(pieces.count(i), core::RowMajor(rows, layer.dim), kernels[l],
                       {layer.bias, layer.relu}, out, layer.units);
        rows = out;
      }
    });
  }
};

class MlpGradientOp final : public MlpOpBase {
 public:
  using MlpOpBase::MlpOpBase;

  void Compute(tf::OpKernelContext* ctx) override {
    Call call;
    OP_REQUIRES_OK(ctx, GetLayers(ctx, &call.layers));
    OP_REQUIRES_OK(ctx, Prepare(ctx, &call));
    const std::vector<Layer>& layers = call.layers;
    Crew crew(ctx, 2 * UsefulHelpers(layers, call.batch));

    for (std::size_t l = 0; l < layers.size(); ++l) {
      call.kernels[l].PackRows(core::Transposed(layers[l].kernel, layers[l].units), 0,
                               layers[l].units);
    }
    // Rows go back through the layers; what the kernels' gradients need of them is kept.
    const Pieces pieces(call.batch, kBatchRows);
    crew.ForEach(pieces.size(),
                 [&](std::int64_t i) { GoBack(call, i, pieces.first(i), pieces.count(i)); });
    for (std::size_t l = 0; l < layers.size(); ++l) {
      if (layers[l].bias == nullptr) continue;
      core::SumRows(pieces.size(), layers[l].units, call.bias_parts[l], call.bias_grads[l]);
    }
    const std::vector<KernelPiece> kernel_pieces = SplitKernels(layers);
    crew.ForEach(static_cast<std::int64_t>(kernel_pieces.size()),
                 [&](std::int64_t i) { MultiplyKernelPiece(call, kernel_pieces[i]); });
  }

 private:
  // What one call works on.
  struct Call {
    std::vector<Layer> layers;
    std::int64_t batch = 0;
    std::int64_t max_width = 0;         // Of inputs and outputs of all layers.
    std::vector<const float*> inputs;   // [batch, dim] of each layer,
    std::vector<const float*> outputs;  // and [batch, units].
    const float* grad = nullptr;        // By the last outputs.
    float* inputs_grad = nullptr;
    std::vector<float*> kernel_grads, bias_grads;
    std::vector<core::PackedMatrix> kernels;  // Transposed.
    std::vector<core::PackedMatrix> grads;    // By a layer's sums, before ReLU: [batch, units].
    std::vector<float*> bias_parts;           // [pieces of the batch, units]
    tf::Tensor kernel_storage, grad_storage, bias_storage;
  };

  // Some rows and columns of a kernel's gradient.
  struct KernelPiece {
    std::size_t layer;
    std::int64_t first_row, rows, first_column, columns;
  };

  absl::Status Prepare(tf::OpKernelContext* ctx, Call* call) const {
    const std::vector<Layer>& layers = call->layers;
    const int n = num_layers();
    const std::int64_t batch = call->batch = ctx->input(0).dim_size(0);
    std::vector<std::pair<std::int64_t, std::int64_t>> kernels, grads;
    std::int64_t units = 0;
    call->inputs.push_back(Data(ctx->input(0)));
    for (int l = 0; l < n; ++l) {
      const tf::Tensor& outputs = ctx->input(1 + 2 * n + l);
      TF_RETURN_IF_ERROR(
          CheckMatrix(absl::StrCat("outputs[", l, "]"), outputs, batch, layers[l].units));
      call->outputs.push_back(Data(outputs));
      if (l + 1 < n) call->inputs.push_back(Data(outputs));
      call->max_width = std::max({call->max_width, layers[l].dim, layers[l].units});
      kernels.emplace_back(layers[l].units, layers[l].dim);
      grads.emplace_back(batch, layers[l].units);
      units += layers[l].units;
    }
    const tf::Tensor& grad = ctx->input(1 + 3 * n);
    TF_RETURN_IF_ERROR(CheckMatrix("grad", grad, batch, layers.back().units));
    call->grad = Data(grad);

    // The outputs are as the first inputs: inputs, kernels, biases.
    for (int i = 0; i < 1 + 2 * n; ++i) {
      tf::Tensor* output = nullptr;
      TF_RETURN_IF_ERROR(ctx->allocate_output(i, ctx->input(i).shape(), &output));
      if (i == 0) {
        call->inputs_grad = Data(output);
      } else {
        (i <= n ? call->kernel_grads : call->bias_grads).push_back(Data(output));
      }
    }
    TF_RETURN_IF_ERROR(AllocatePacked(ctx, kernels, &call->kernel_storage, &call->kernels));
    TF_RETURN_IF_ERROR(AllocatePacked(ctx, grads, &call->grad_storage, &call->grads));
    const std::int64_t parts = Pieces(batch, kBatchRows).size();
    TF_RETURN_IF_ERROR(
        ctx->allocate_temp(tf::DT_FLOAT, tf::TensorShape({parts * units}), &call->bias_storage));
    float* at = Data(&call->bias_storage);
    for (const Layer& layer : layers) {
      call->bias_parts.push_back(at);
      at += parts * layer.units;
    }
    return absl::OkStatus();
  }

  // Computes the inputs' gradient of `count` rows; on the way, keeps the gradients by the layers'
  // sums and adds them up for the biases.
  static void GoBack(Call& call, std::int64_t piece, std::int64_t first, std::int64_t count) {
    float* masked = FloatsOfThisThread(2 * count * call.max_width);
    float* by_inputs = masked + count * call.max_width;
    const float* grads = call.grad + first * call.layers.back().units;
    for (std::size_t l = call.layers.size(); l-- > 0;) {
      const Layer& layer = call.layers[l];
      if (layer.relu) {
        core::ReluGradient(count * layer.units, call.outputs[l] + first * layer.units, grads,
                           masked);
        grads = masked;
      }
      if (layer.bias != nullptr) {
        core::SumRows(count, layer.units, grads, call.bias_parts[l] + piece * layer.units);
      }
      const core::MatrixView rows = core::RowMajor(grads, layer.units);
      call.grads[l].PackRows(rows, first, count);
      float* out = l == 0 ? call.inputs_grad + first * layer.dim : by_inputs;
      core::Multiply(count, rows, call.kernels[l], {}, out, layer.dim);
      // The next layer masks them in place, and its product goes to the other half.
      grads = out;
      std::swap(masked, by_inputs);
    }
  }

  static std::vector<KernelPiece> SplitKernels(const std::vector<Layer>& layers) {
    std::vector<KernelPiece> result;
    for (std::size_t l = 0; l < layers.size(); ++l) {
      const Pieces rows(layers[l].dim, kKernelRows);
      const Pieces columns(layers[l].units, kKernelColumns);
      for (std::int64_t c = 0; c < columns.size(); ++c) {
        for (std::int64_t r = 0; r < rows.size(); ++r) {
          result.push_back({l, rows.first(r), rows.count(r), columns.first(c), columns.count(c)});
        }
      }
    }
    return result;
  }

  static void MultiplyKernelPiece(const Call& call, const KernelPiece& piece) {
    const Layer& layer = call.layers[piece.layer];
    core::Multiply(
        piece.rows, core::Transposed(call.inputs[piece.layer], layer.dim).FromRow(piece.first_row),
        call.grads[piece.layer].Columns(piece.first_column, piece.first_column + piece.columns), {},
        call.kernel_grads[piece.layer] + piece.first_row * layer.units + piece.first_column,
        layer.units);
  }
};

REGISTER_KERNEL_BUILDER(Name("MonolithMlp").Device(tf::DEVICE_CPU), MlpOp);
REGISTER_KERNEL_BUILDER(Name("MonolithMlpGradient").Device(tf::DEVICE_CPU), MlpGradientOp);

}  // namespace
}  // namespace monolith::ops
