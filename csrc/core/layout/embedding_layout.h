// Rows of ids to tensors of the dense network, and gradients of those back to the rows.
//
// Three flat lists say where the rows of a feature's examples are: `nfl_offset` leads from a
// feature to `feature_offset`, that from an example to `fid_offset`, and that from an id to its
// row. All of them come from outside, so all of them are checked before a row is touched.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/layout/layout_config.h"

namespace monolith::core {

// Some elements of somebody else's memory.
template <typename T>
struct ArrayView {
  const T* data = nullptr;
  std::size_t size = 0;

  const T& operator[](std::size_t i) const { return data[i]; }
};

struct LayoutOffsets {
  ArrayView<std::uint32_t> nfl;
  ArrayView<std::int32_t> feature;
  ArrayView<std::uint64_t> fid;
  std::int64_t batch_size = 0;
};

// The bit of `nfl_offset` that says that all examples of the batch have the same ids.
inline constexpr std::uint32_t kSharedFeature = 0x80000000U;

// What the upper half of a `fid_offset` names: floats [first, first + size) of a list of rows.
struct RowBlock {
  std::size_t list = 0;
  std::int64_t first = 0;
  std::int64_t size = 0;
  // The lower half counts rows of so many floats; 0: it counts floats.
  std::int64_t row_width = 0;
};

// The offsets of a batch, checked: which of the rows are those of a feature in an example.
class LayoutIndex {
 public:
  struct Range {
    std::size_t first = 0;
    std::size_t last = 0;
  };

  // Throws std::invalid_argument for offsets that lead out of a list.
  LayoutIndex(const LayoutConfig& config, const LayoutOffsets& offsets);

  [[nodiscard]] std::int64_t batch_size() const { return offsets_.batch_size; }
  [[nodiscard]] Range RowsOf(std::size_t feature, std::int64_t example) const {
    const Feature& of = features_[feature];
    if (of.count == 0) return {};
    return IdsAt(of.first + (of.is_shared ? 0 : static_cast<std::size_t>(example)));
  }

  // Where the row of each id is: in `lists`, which have the blocks. An id that belongs to no
  // feature has none. Throws std::invalid_argument for a row that is not inside of its block.
  template <typename Float>
  [[nodiscard]] std::vector<Float*> FindRows(const LayoutConfig& config,
                                             const std::vector<RowBlock>& blocks,
                                             Float* const* lists) const {
    std::vector<Float*> rows(offsets_.fid.size, nullptr);
    for (std::size_t f = 0; f < features_.size(); ++f) {
      const Feature& of = features_[f];
      if (of.count == 0) continue;
      const std::size_t last = IdsAt(of.first + of.count - 1).last;
      for (std::size_t i = IdsAt(of.first).first; i < last; ++i) {
        const std::int64_t place = PlaceOf(config.features[f], blocks, i);
        rows[i] = lists[blocks[offsets_.fid[i] >> 32].list] + place;
      }
    }
    return rows;
  }

 private:
  struct Feature {
    std::size_t first = 0;  // In the offsets of features.
    std::size_t count = 0;
    bool is_shared = false;
  };

  [[nodiscard]] Range IdsAt(std::size_t i) const {
    const bool is_last = i + 1 == offsets_.feature.size;
    return {static_cast<std::size_t>(offsets_.feature[i]),
            is_last ? offsets_.fid.size : static_cast<std::size_t>(offsets_.feature[i + 1])};
  }
  // Where the row of id `i` begins in its list.
  [[nodiscard]] std::int64_t PlaceOf(const LayoutFeature& feature,
                                     const std::vector<RowBlock>& blocks, std::size_t i) const;

  LayoutOffsets offsets_;
  std::vector<Feature> features_;
};

// Writes the examples [first, last) of all outputs. Several threads may work on different examples.
void MakeLayouts(const LayoutConfig& config, const LayoutIndex& index,
                 const std::vector<const float*>& rows, std::int64_t first, std::int64_t last,
                 float* const* outputs);

// Adds the gradients of all outputs to the rows that were theirs, as far as the rows belong to
// `part` of `num_parts`. Different threads may work on different parts; each row gets its sum in
// the same order, however many there are.
void AddLayoutGradients(const LayoutConfig& config, const LayoutIndex& index,
                        const std::vector<float*>& rows, const float* const* output_gradients,
                        std::size_t part, std::size_t num_parts);

}  // namespace monolith::core
