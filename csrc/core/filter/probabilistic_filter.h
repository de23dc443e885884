// Admits an id by lot, so that frequent ids get a row soon and rare ones seldom.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>

#include "core/filter/admission_filter.h"
#include "core/table/table_config.h"

namespace monolith::core {

// A 32-bit random number of the calling thread's own generator, seeded by the operating system.
[[nodiscard]] std::uint32_t ThreadRandom32();

// Keeps nothing per id and has nothing to save.
//
// Every occurrence is a draw. With `t` the threshold of the id's slot, or of who asks, an id seen
// `count` times in one call is admitted with probability
//   count / t                 by default (t occurrences in one call admit it for sure), or
//   1 - (1 - p)^count         with `equal_probability`, where p = 1 - 0.05^(1/t): after t
//   occurrences
//                             95 % of the ids have a row, however the occurrences came in calls.
// A threshold of 0 admits at once.
//
// Thread-safe if `random` is; the default is, and shares nothing between threads.
class ProbabilisticFilter final : public SharedFilter {
 public:
  ProbabilisticFilter(const SlotThresholds& thresholds, bool equal_probability,
                      std::function<std::uint32_t()> random = ThreadRandom32);

  bool Admit(std::int64_t id, std::uint32_t count) override;
  bool AdmitFrom(std::uint32_t threshold, std::int64_t id, std::uint32_t count) override;
  [[nodiscard]] std::uint32_t max_threshold() const override {
    return std::numeric_limits<std::uint32_t>::max();
  }

 private:
  const SlotThresholds thresholds_;
  const bool equal_probability_;
  const std::function<std::uint32_t()> random_;
};

}  // namespace monolith::core
