// What kernels ask of their inputs before they trust a size or an index.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "ops/system/sizes.h"
#include "tensorflow/core/framework/partial_tensor_shape.h"
#include "tensorflow/core/framework/tensor.h"

namespace monolith::ops {

// Checks that `tensor`, the input called `name`, has `rank` dimensions.
[[nodiscard]] inline absl::Status CheckRank(const tensorflow::Tensor& tensor, const char* name,
                                            int rank) {
  if (tensor.dims() == rank) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("`", name, "` must have ", rank, rank == 1 ? " dimension" : " dimensions",
                   ", got shape ", tensor.shape().DebugString(), "."));
}

// Checks that `tensor` has `expected` elements; `why` says what asks for them.
[[nodiscard]] inline absl::Status CheckNumElements(const tensorflow::Tensor& tensor,
                                                   const char* name, std::int64_t expected,
                                                   const char* why) {
  if (tensor.NumElements() == expected) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "`", name, "` must have ", expected, expected == 1 ? " element, " : " elements, ", why,
      ", got shape ", tensor.shape().DebugString(), "."));
}

// Checks that `splits` cut `num_values` values into rows: 0, never falling, `num_values`.
[[nodiscard]] inline absl::Status CheckRowSplits(absl::Span<const std::int64_t> splits,
                                                 const char* name, std::int64_t num_values) {
  if (splits.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "`", name, "` must have at least one element, the start of the first row, but is empty."));
  }
  if (splits.front() != 0 || splits.back() != num_values) {
    return absl::InvalidArgumentError(absl::StrCat(
        "`", name, "` must start with 0 and end with the number of values, ", num_values,
        "; it starts with ", splits.front(), " and ends with ", splits.back(), "."));
  }
  for (std::size_t i = 1; i < splits.size(); ++i) {
    if (splits[i] < splits[i - 1]) {
      return absl::InvalidArgumentError(absl::StrCat("`", name, "` must not fall, but element ", i,
                                                     " is ", splits[i], " after ", splits[i - 1],
                                                     "."));
    }
  }
  return absl::OkStatus();
}

// The error of an index outside of [0, limit).
[[nodiscard]] inline absl::Status BadIndex(const char* name, std::int64_t position,
                                           std::int64_t index, std::int64_t limit) {
  return absl::InvalidArgumentError(absl::StrCat("`", name, "` must be within [0, ", limit,
                                                 "), but element ", position, " is ", index, "."));
}

// Checks the name of a file or snapshot: the system would take a part of it for the whole.
[[nodiscard]] inline absl::Status CheckFileName(const char* input, absl::string_view name) {
  if (name.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("`", input, "` is empty; it must name a file."));
  }
  const std::size_t nul = name.find('\0');
  if (nul == absl::string_view::npos) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("`", input,
                                                 "` must name a file, but has a NUL at ", nul,
                                                 ", after '", name.substr(0, nul), "'."));
}

// The elements of a tensor of any rank.
template <typename T>
[[nodiscard]] absl::Span<const T> Flat(const tensorflow::Tensor& tensor) {
  return absl::MakeConstSpan(tensor.flat<T>().data(),
                             static_cast<std::size_t>(tensor.NumElements()));
}

// Checks that the known dimensions of `shape` multiply to a number: TensorFlow's optimizer of
// graphs ends the process over others, even if a dimension is open.
[[nodiscard]] inline absl::Status CheckKnownDims(const char* name,
                                                 const tensorflow::PartialTensorShape& shape) {
  std::int64_t product = 1;
  if (shape.unknown_rank()) return absl::OkStatus();
  for (const auto size : shape.dim_sizes()) {
    if (size > 0) product = SizeProduct(product, size);
  }
  if (product != kTooLarge) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("`", name, "` must be the shape of a tensor, but ",
                                                 shape.DebugString(),
                                                 " has 2^63 or more elements."));
}

// A shape of dimensions that come from data; an impossible one is an error and no crash.
[[nodiscard]] inline absl::Status MakeShape(absl::Span<const std::int64_t> dims,
                                            tensorflow::TensorShape* shape) {
  return tensorflow::TensorShape::BuildTensorShape(dims, shape);
}

}  // namespace monolith::ops
