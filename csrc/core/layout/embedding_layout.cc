#include "core/layout/embedding_layout.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "core/system/simd.h"

namespace monolith::core {
namespace {

[[noreturn]] void Fail(const std::string& message) { throw std::invalid_argument(message); }

MONOLITH_SIMD void AddScaled(const float* MONOLITH_RESTRICT from, std::int64_t n, float scale,
                             float* MONOLITH_RESTRICT to) {
  for (std::int64_t i = 0; i < n; ++i) to[i] += scale * from[i];
}

// What a row counts for in the combined row of an example with `num_rows` of them.
float ScaleOf(const LayoutFeature& feature, std::size_t num_rows) {
  return feature.pooling == Pooling::kMean ? 1.0F / static_cast<float>(num_rows) : 1.0F;
}

// How many of an example's rows reach the outputs.
std::size_t NumUsed(const LayoutFeature& feature, LayoutIndex::Range range) {
  const std::size_t num_rows = range.last - range.first;
  if (feature.pooling != Pooling::kFirstN) return num_rows;
  return std::min(num_rows, static_cast<std::size_t>(feature.max_sequence_length));
}

std::int64_t OffsetOf(const LayoutFeature& feature, const LayoutSlice& slice, std::size_t row) {
  if (feature.pooling != Pooling::kFirstN) return slice.offset;
  return slice.offset + static_cast<std::int64_t>(row) * slice.width;
}

// Spreads rows over parts, by where they are.
std::size_t PartOf(const float* row, std::size_t num_parts) {
  const auto place = static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(row)) >> 2;
  return static_cast<std::size_t>((place * 0x9E3779B97F4A7C15ULL) >> 32) % num_parts;
}

}  // namespace

LayoutIndex::LayoutIndex(const LayoutConfig& config, const LayoutOffsets& offsets)
    : offsets_(offsets) {
  if (offsets.batch_size < 0) {
    Fail("`batch_size` must not be negative, got " + std::to_string(offsets.batch_size) + ".");
  }
  if (offsets.nfl.size != config.features.size()) {
    Fail("`nfl_offset` must have an element for each of the " +
         std::to_string(config.features.size()) + " features, got " +
         std::to_string(offsets.nfl.size) + ".");
  }
  for (std::size_t i = 0; i < offsets.feature.size; ++i) {
    const std::int64_t before = i == 0 ? 0 : offsets.feature[i - 1];
    if (offsets.feature[i] < before ||
        static_cast<std::uint64_t>(offsets.feature[i]) > offsets.fid.size) {
      Fail("`feature_offset` must rise from 0 to at most the number of ids, " +
           std::to_string(offsets.fid.size) + ", but element " + std::to_string(i) + " is " +
           std::to_string(offsets.feature[i]) + ".");
    }
  }
  features_.resize(config.features.size());
  for (std::size_t f = 0; f < features_.size(); ++f) {
    Feature& feature = features_[f];
    feature.first = offsets.nfl[f] & ~kSharedFeature;
    feature.is_shared = (offsets.nfl[f] & kSharedFeature) != 0;
    const std::size_t next =
        f + 1 == features_.size() ? offsets.feature.size : offsets.nfl[f + 1] & ~kSharedFeature;
    if (next < feature.first || next > offsets.feature.size) {
      Fail("`nfl_offset` must rise to at most the size of `feature_offset`, " +
           std::to_string(offsets.feature.size) + ", but goes from " +
           std::to_string(feature.first) + " to " + std::to_string(next) + " at element " +
           std::to_string(f) + ".");
    }
    feature.count = next - feature.first;
    const auto expected =
        feature.is_shared ? std::size_t{1} : static_cast<std::size_t>(offsets.batch_size);
    if (feature.count != 0 && feature.count != expected) {
      Fail("Feature '" + config.features[f].name + "' must have offsets for " +
           std::to_string(expected) + " examples, or for none, got " +
           std::to_string(feature.count) + ".");
    }
  }
}

std::int64_t LayoutIndex::PlaceOf(const LayoutFeature& feature, const std::vector<RowBlock>& blocks,
                                  std::size_t i) const {
  const std::uint64_t number = offsets_.fid[i] >> 32;
  if (number >= blocks.size()) {
    Fail("`fid_offset` must name one of " + std::to_string(blocks.size()) +
         " embeddings, but element " + std::to_string(i) + " names number " +
         std::to_string(number) + ".");
  }
  const RowBlock& block = blocks[number];
  const auto position = static_cast<std::int64_t>(offsets_.fid[i] & 0xFFFFFFFFU);
  if (block.row_width != 0 && block.row_width != feature.dim) {
    Fail("Embedding " + std::to_string(number) + " has rows of " + std::to_string(block.row_width) +
         " floats, but those of feature '" + feature.name + "' have " +
         std::to_string(feature.dim) + ".");
  }
  // Neither factor is above 2^32, and their product not above the limit of rows.
  const std::int64_t place = block.row_width == 0 ? position : position * block.row_width;
  if (place > block.size - feature.dim) {
    Fail("The row of feature '" + feature.name + "' at " + std::to_string(position) + " (element " +
         std::to_string(i) + " of `fid_offset`) is not inside of embedding " +
         std::to_string(number) + ", which has " + std::to_string(block.size) + " floats.");
  }
  return block.first + place;
}

void MakeLayouts(const LayoutConfig& config, const LayoutIndex& index,
                 const std::vector<const float*>& rows, std::int64_t first, std::int64_t last,
                 float* const* outputs) {
  for (std::size_t output = 0; output < config.outputs.size(); ++output) {
    const std::int64_t width = config.outputs[output].width;
    std::fill(outputs[output] + first * width, outputs[output] + last * width, 0.0F);
  }
  for (std::size_t f = 0; f < config.features.size(); ++f) {
    const LayoutFeature& feature = config.features[f];
    for (std::int64_t example = first; example < last; ++example) {
      const LayoutIndex::Range range = index.RowsOf(f, example);
      const float scale = ScaleOf(feature, range.last - range.first);
      const std::size_t num_used = NumUsed(feature, range);
      for (std::size_t i = 0; i < num_used; ++i) {
        const float* row = rows[range.first + i];
        for (const LayoutSlice& slice : config.slices[f]) {
          float* to = outputs[slice.output] + example * config.outputs[slice.output].width +
                      OffsetOf(feature, slice, i);
          AddScaled(row + slice.start, slice.width, scale, to);
        }
      }
    }
  }
}

void AddLayoutGradients(const LayoutConfig& config, const LayoutIndex& index,
                        const std::vector<float*>& rows, const float* const* output_gradients,
                        std::size_t part, std::size_t num_parts) {
  for (std::size_t f = 0; f < config.features.size(); ++f) {
    const LayoutFeature& feature = config.features[f];
    for (std::int64_t example = 0; example < index.batch_size(); ++example) {
      const LayoutIndex::Range range = index.RowsOf(f, example);
      const float scale = ScaleOf(feature, range.last - range.first);
      const std::size_t num_used = NumUsed(feature, range);
      for (std::size_t i = 0; i < num_used; ++i) {
        float* row = rows[range.first + i];
        if (PartOf(row, num_parts) != part) continue;
        for (const LayoutSlice& slice : config.slices[f]) {
          const float* from = output_gradients[slice.output] +
                              example * config.outputs[slice.output].width +
                              OffsetOf(feature, slice, i);
          AddScaled(from, slice.width, scale, row + slice.start);
        }
      }
    }
  }
}

}  // namespace monolith::core
