// What a serialized FeatureConfigs says: which features there are, and which tensors of the dense
// network are made of their rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace monolith::core {

enum class Pooling { kSum, kMean, kFirstN };

// A feature whose ids have rows of `dim` floats.
struct LayoutFeature {
  std::string name;
  std::string table;
  Pooling pooling = Pooling::kSum;
  std::int64_t dim = 0;
  std::int64_t max_sequence_length = 0;  // Of kFirstN: how many rows are kept apart.
  std::size_t table_index = 0;           // Among the tables, sorted by name.
  std::size_t index_in_table = 0;        // Among the features of its table, sorted by name.
};

// A tensor of the network: for each example the floats of `dims`.
struct LayoutOutput {
  std::vector<std::int64_t> dims;  // Without the batch.
  std::int64_t width = 0;          // Their product.
};

// Floats [start, start + width) of a feature's combined row are added at `offset` of an example's
// part of an output; the i-th row of kFirstN `i * width` behind it.
struct LayoutSlice {
  std::size_t output = 0;
  std::int64_t start = 0;
  std::int64_t width = 0;
  std::int64_t offset = 0;
};

struct LayoutConfig {
  std::vector<LayoutFeature> features;  // Sorted by name.
  std::vector<std::string> tables;      // Sorted.
  std::vector<LayoutOutput> outputs;    // Layouts sorted by name, and there as they are listed.
  std::vector<std::vector<LayoutSlice>> slices;  // By feature.

  // The position of a feature in `features`, or their number if there is none of this name.
  [[nodiscard]] std::size_t Find(std::string_view name) const;
};

// Reads monolith.io.proto.FeatureConfigs. Throws std::invalid_argument for one that is malformed or
// contradicts itself.
[[nodiscard]] LayoutConfig ParseLayoutConfig(std::string_view serialized);

}  // namespace monolith::core
