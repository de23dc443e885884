// Rows that are reduced by the number of the segment each belongs to.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "ops/system/parallel.h"
#include "ops/system/tensor_checks.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace monolith::ops {

// Says which rows belong to which segment. Row ids of a ragged tensor are sorted, which costs
// nothing here; others are ordered first, so that each segment has its rows side by side.
class Segments {
 public:
  // `ids` [n] says for each row its segment, within [0, num_segments); it must outlive this object.
  absl::Status Init(absl::Span<const std::int64_t> ids, std::int64_t num_segments,
                    const char* name) {
    ids_ = ids;
    num_segments_ = num_segments;
    bool sorted = true;
    std::int64_t last = 0;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (ids[i] < 0 || ids[i] >= num_segments) return BadIndex(name, i, ids[i], num_segments);
      sorted &= ids[i] >= last;
      last = ids[i];
    }
    if (!sorted) {
      order_.resize(ids.size());
      for (std::size_t i = 0; i < ids.size(); ++i) order_[i] = static_cast<std::int64_t>(i);
      // Stable: sums of floats do not depend on anything but the order of the rows.
      std::stable_sort(order_.begin(), order_.end(),
                       [&](std::int64_t a, std::int64_t b) { return ids[a] < ids[b]; });
    }
    return absl::OkStatus();
  }

  // Calls `reduce(segment, rows, count)` for every segment, empty ones too, where `rows(k)` is the
  // k-th of its `count` rows; from several threads if the work, `floats_per_row`, is worth it.
  template <typename Reduce>
  void ForEach(tensorflow::OpKernelContext* ctx, std::int64_t floats_per_row,
               const Reduce& reduce) const {
    if (num_segments_ == 0) return;
    const auto n = static_cast<std::int64_t>(ids_.size());
    const std::int64_t cycles = 10 + floats_per_row * (1 + n / num_segments_);
    ParallelFor(ctx, num_segments_, cycles, [&](std::int64_t begin, std::int64_t end) {
      std::int64_t next = FirstRowAtOrAfter(begin);
      for (std::int64_t segment = begin; segment < end; ++segment) {
        const std::int64_t first = next;
        while (next < n && SegmentOf(next) == segment) ++next;
        reduce(segment, [&](std::int64_t k) { return RowAt(first + k); }, next - first);
      }
    });
  }

 private:
  [[nodiscard]] std::int64_t RowAt(std::int64_t place) const {
    return order_.empty() ? place : order_[place];
  }
  [[nodiscard]] std::int64_t SegmentOf(std::int64_t place) const { return ids_[RowAt(place)]; }

  [[nodiscard]] std::int64_t FirstRowAtOrAfter(std::int64_t segment) const {
    std::int64_t low = 0;
    auto high = static_cast<std::int64_t>(ids_.size());
    while (low < high) {
      const std::int64_t middle = low + (high - low) / 2;
      if (SegmentOf(middle) < segment) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low;
  }

  absl::Span<const std::int64_t> ids_;
  std::int64_t num_segments_ = 0;
  std::vector<std::int64_t> order_;  // Rows by segment; empty if the rows are in order.
};

}  // namespace monolith::ops
