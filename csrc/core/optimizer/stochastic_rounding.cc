#include "core/optimizer/stochastic_rounding.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/optimizer/factories.h"
#include "core/row/half.h"

namespace monolith::core {
namespace {

constexpr float kGreatestHalf = 65504.0f;

// The next number of float16 after `half`, away from or towards zero. Neighbours differ by one in
// their bits as long as the sign stays.
std::uint16_t AwayFromZero(std::uint16_t half) { return static_cast<std::uint16_t>(half + 1); }
std::uint16_t TowardsZero(std::uint16_t half) { return static_cast<std::uint16_t>(half - 1); }

// Each weight is a float16 number after each step, so that it survives being exported as float16
// without a second rounding. The state keeps its full width.
class StochasticRounding final : public Optimizer {
 public:
  explicit StochasticRounding(std::unique_ptr<Optimizer> base) : base_(std::move(base)) {}

  [[nodiscard]] std::size_t dim() const override { return base_->dim(); }
  [[nodiscard]] std::size_t state_bytes() const override { return base_->state_bytes(); }
  void InitState(std::byte* state) const override { base_->InitState(state); }

  void Step(float* w, std::byte* state, const float* grad, float learning_rate,
            std::int64_t global_step) const override {
    thread_local MwcRandom random;
    base_->Step(w, state, grad, learning_rate, global_step);
    for (std::size_t i = 0; i < dim(); ++i) w[i] = RoundToFloat16(w[i], &random);
  }

  [[nodiscard]] int num_dumps() const override { return base_->num_dumps(); }
  [[nodiscard]] std::size_t DumpBytes(const std::byte* state) const override {
    return base_->DumpBytes(state);
  }
  char* WriteDump(const std::byte* state, char* out) const override {
    return base_->WriteDump(state, out);
  }
  void ParseDump(std::string_view single_optimizer_dump, std::byte* state) const override {
    base_->ParseDump(single_optimizer_dump, state);
  }
  [[nodiscard]] std::size_t fixed_dump_bytes() const override { return base_->fixed_dump_bytes(); }
  [[nodiscard]] bool ReadDump(const char* dump, std::byte* state) const override {
    return base_->ReadDump(dump, state);
  }

 private:
  std::unique_ptr<Optimizer> base_;
};

}  // namespace

float RoundToFloat16(float value, MwcRandom* random) {
  const double draw = static_cast<double>(random->Next()) / MwcRandom::kRange;
  if (!std::isfinite(value)) return value;
  value = std::min(std::max(value, -kGreatestHalf), kGreatestHalf);
  const std::uint16_t nearest_bits = HalfFromFloat(value);
  const float nearest = FloatFromHalf(nearest_bits);
  if (nearest == value) return value;
  // `value` lies between `nearest` and its neighbour on the other side of it.
  const bool nearest_is_smaller = std::abs(nearest) < std::abs(value);
  const float other =
      FloatFromHalf(nearest_is_smaller ? AwayFromZero(nearest_bits) : TowardsZero(nearest_bits));
  const float down = std::min(nearest, other);
  const float up = std::max(nearest, other);
  return draw < static_cast<double>((value - down) / (up - down)) ? up : down;
}

std::unique_ptr<Optimizer> MakeStochasticRounding(std::unique_ptr<Optimizer> base) {
  return std::make_unique<StochasticRounding>(std::move(base));
}

}  // namespace monolith::core
