// Sizes that come from inputs and attributes: multiplied and added without overflow, and refused
// where only a number, and no data, asks for memory.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace monolith::ops {

// What a product or sum becomes that does not fit; more of it stays what it is. No tensor has so
// many elements, so that a check of the result is enough.
inline constexpr std::int64_t kTooLarge = std::numeric_limits<std::int64_t>::max();

// Of two numbers that are not negative.
[[nodiscard]] inline std::int64_t SizeProduct(std::int64_t a, std::int64_t b) {
  std::int64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? kTooLarge : product;
}
[[nodiscard]] inline std::int64_t SizeSum(std::int64_t a, std::int64_t b) {
  std::int64_t sum = 0;
  return __builtin_add_overflow(a, b, &sum) ? kTooLarge : sum;
}

// A dimension beyond this is a mistake, even of a tensor that has another of 0 and so no elements:
// loops over it would not end.
inline constexpr std::int64_t kMostPerDimension = std::numeric_limits<std::int32_t>::max();

// Workers or servers that exchange ids.
inline constexpr std::int64_t kMostShards = 1 << 16;

// Checks the size of an output that `name` asks for by its value. It may have as many elements as
// fit into 1 GB, or 1024 for each that came in: one number must not take all memory, and a large
// batch may.
[[nodiscard]] inline absl::Status CheckSize(const char* name, std::int64_t elements,
                                            std::int64_t elements_in) {
  constexpr std::int64_t kFree = std::int64_t{1} << 28;
  constexpr std::int64_t kPerElement = 1024;
  const std::int64_t most = std::max(kFree, SizeProduct(elements_in, kPerElement));
  if (elements <= most && elements != kTooLarge) return absl::OkStatus();
  const std::string asked = elements == kTooLarge ? "2^63 or more" : absl::StrCat(elements);
  return absl::InvalidArgumentError(absl::StrCat("`", name, "` asks for an output of ", asked,
                                                 " elements, but with inputs of ", elements_in,
                                                 " elements it may have at most ", most, "."));
}

// Checks a number of shards.
[[nodiscard]] inline absl::Status CheckShards(std::int64_t num_of_shards) {
  if (num_of_shards >= 1 && num_of_shards <= kMostShards) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("`num_of_shards` must be between 1 and ",
                                                 kMostShards, ", got ", num_of_shards, "."));
}

}  // namespace monolith::ops
