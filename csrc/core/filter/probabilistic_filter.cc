#include "core/filter/probabilistic_filter.h"

#include <cmath>
#include <random>
#include <utility>

namespace monolith::core {
namespace {

constexpr std::uint64_t kMaxRandom = 0xFFFFFFFFu;
// The share of ids still without a row after as many occurrences as the threshold says.
constexpr double kLeftOut = 0.05;

}  // namespace

std::uint32_t ThreadRandom32() {
  thread_local std::mt19937 generator{std::random_device{}()};
  return static_cast<std::uint32_t>(generator());
}

ProbabilisticFilter::ProbabilisticFilter(const SlotThresholds& thresholds, bool equal_probability,
                                         std::function<std::uint32_t()> random)
    : thresholds_(thresholds), equal_probability_(equal_probability), random_(std::move(random)) {}

bool ProbabilisticFilter::Admit(std::int64_t id, std::uint32_t count) {
  return AdmitFrom(thresholds_.threshold(id), id, count);
}

bool ProbabilisticFilter::AdmitFrom(std::uint32_t threshold, std::int64_t, std::uint32_t count) {
  if (threshold == 0) return true;
  const std::uint64_t draw = random_();
  if (!equal_probability_) return draw * threshold < kMaxRandom * count;
  // (1 - p)^count with p = 1 - kLeftOut^(1 / threshold).
  const double missed = std::pow(kLeftOut, static_cast<double>(count) / threshold);
  return static_cast<double>(draw) < static_cast<double>(kMaxRandom) * (1.0 - missed);
}

}  // namespace monolith::core
