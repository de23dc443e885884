// The ids that serialized Example, ExampleBatch and Instance messages have for some features.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "core/layout/id_sharding.h"
#include "core/layout/layout_config.h"

namespace monolith::core {

enum class ExampleFormat { kExample, kExampleBatch, kInstance };

// "example", "example_batch" (or "examplebatch"), "instance". Throws std::invalid_argument for
// anything else.
[[nodiscard]] ExampleFormat ParseExampleFormat(std::string_view name);

// Ids of the features of a config, as the messages of a batch have them. Ids of the older form,
// with the slot in the upper ten bits, become those of the newer one; an Instance keeps them as
// they are, and they belong to the feature `slot_<n>` or `fc_slot_<n>`.
class SerializedIds {
 public:
  // A batch is one ExampleBatch, or any number of the others. Throws std::invalid_argument for
  // malformed messages, and for features that hold something else than ids.
  SerializedIds(const LayoutConfig& config, ExampleFormat format,
                const std::vector<std::string_view>& messages);

  [[nodiscard]] std::int64_t batch_size() const { return batch_size_; }
  // Valid while this object is.
  [[nodiscard]] std::vector<FeatureIds> features() const;

 private:
  struct Feature {
    std::vector<std::int64_t> ids;
    std::vector<std::int64_t> splits;
    bool is_shared = false;
  };

  void ReadBatch(std::string_view message);
  void ReadBatchFeature(std::string_view message);
  void ReadExample(std::string_view message);
  void ReadInstance(std::string_view message);
  // Ends the current example of every feature.
  void EndExample();

  const LayoutConfig& config_;
  std::vector<Feature> features_;
  std::vector<std::size_t> feature_of_slot_;  // For the slots of older ids.
  std::int64_t batch_size_ = 0;
};

}  // namespace monolith::core
