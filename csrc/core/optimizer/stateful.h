// What all optimizers share: a state of a few float arrays, or one integer, and its dump.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/optimizer/optimizer.h"

namespace monolith::core {

// One part of the state, and the field of the optimizer's dump message that holds it.
struct StateField {
  enum class Kind : std::uint8_t { kFloats, kInt64 };

  const char* name;           // As in the proto.
  std::uint32_t dump_number;  // At most 15, so that the tag is one byte.
  Kind kind;
  std::size_t count;    // Floats; an integer counts as 1.
  float initial_value;  // Integers start at 0.
};

// An optimizer is this plus Step. Kinds are known by their field number in SingleOptimizerDump.
class StatefulOptimizer : public Optimizer {
 public:
  [[nodiscard]] std::size_t dim() const final { return dim_; }
  [[nodiscard]] std::size_t state_bytes() const final { return state_bytes_; }
  void InitState(std::byte* state) const final;
  [[nodiscard]] int num_dumps() const final { return dump_member_ == 0 ? 0 : 1; }
  [[nodiscard]] std::size_t DumpBytes(const std::byte* state) const final;
  char* WriteDump(const std::byte* state, char* out) const final;
  [[nodiscard]] std::size_t fixed_dump_bytes() const final { return fixed_dump_bytes_; }
  [[nodiscard]] bool ReadDump(const char* dump, std::byte* state) const final;
  void ParseDump(std::string_view single_optimizer_dump, std::byte* state) const final;

 protected:
  static constexpr std::uint32_t kNoDump = 0;

  // `fields` are in the order of the memory; the dump has them in the order of their numbers.
  StatefulOptimizer(std::uint32_t dump_member, std::size_t dim, std::vector<StateField> fields);

  // Start of the `index`-th array of `dim` floats.
  [[nodiscard]] float* Floats(std::byte* state, std::size_t index) const {
    return reinterpret_cast<float*>(state) + index * dim_;
  }

 private:
  struct Part : StateField {
    std::size_t offset;  // Bytes from the start of the state.
  };

  [[nodiscard]] std::size_t PayloadBytes(const std::byte* state) const;
  // The dump message of this optimizer inside a SingleOptimizerDump.
  [[nodiscard]] std::string_view FindPayload(std::string_view single_optimizer_dump) const;

  std::uint32_t dump_member_;
  std::size_t dim_;
  std::size_t state_bytes_ = 0;
  std::vector<Part> parts_;  // In the order of the dump.
  std::size_t fixed_dump_bytes_ = 0;
  std::string fixed_dump_head_;  // What stands before the floats.
};

// Throw std::invalid_argument naming the setting.
void RequireNotNegative(const char* setting, float value);
void RequireFraction(const char* setting, float value);  // 0 <= value < 1.

}  // namespace monolith::core
