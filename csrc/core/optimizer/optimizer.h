// Optimizers of one segment of a row. Their state lives in the row, behind the values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "core/table/table_config.h"

namespace monolith::core {

// Rows that take a step together, as one of their segments sees them.
struct SegmentRows {
  std::size_t n;
  std::byte* const* rows;
  const float* const* grads;  // Of whole rows.
  std::size_t value_offset;   // Floats, in rows and gradients alike.
  std::size_t state_offset;   // Bytes.

  [[nodiscard]] float* w(std::size_t i) const {
    return reinterpret_cast<float*>(rows[i]) + value_offset;
  }
  [[nodiscard]] std::byte* state(std::size_t i) const { return rows[i] + state_offset; }
  [[nodiscard]] const float* grad(std::size_t i) const { return grads[i] + value_offset; }
};

// Immutable: every method may be called from any thread. Rows are locked by the caller.
// `state` is only 4-byte aligned.
class Optimizer {
 public:
  virtual ~Optimizer() = default;

  [[nodiscard]] virtual std::size_t dim() const = 0;
  [[nodiscard]] virtual std::size_t state_bytes() const = 0;  // A multiple of 4.
  virtual void InitState(std::byte* state) const = 0;

  // One step on one row: `w` [dim] and `state` change, `grad` [dim] does not. The three do not
  // overlap. Throws std::invalid_argument where the optimizer needs a global step and gets a
  // negative one.
  virtual void Step(float* w, std::byte* state, const float* grad, float learning_rate,
                    std::int64_t global_step) const = 0;
  // A step on each row, in order, since one may come twice. Optimizers whose step takes no longer
  // than the calls that lead to it go through the rows themselves.
  virtual void Steps(const SegmentRows& rows, float learning_rate, std::int64_t global_step) const {
    for (std::size_t i = 0; i < rows.n; ++i) {
      Step(rows.w(i), rows.state(i), rows.grad(i), learning_rate, global_step);
    }
  }

  // How many elements of OptimizerDump.dump this optimizer writes and reads: 1, or 0 for
  // moving_average, which has neither a state nor a message for it.
  [[nodiscard]] virtual int num_dumps() const = 0;
  // Size of the OptimizerDump.dump fields of `state`, tags and lengths included.
  [[nodiscard]] virtual std::size_t DumpBytes(const std::byte* state) const = 0;
  // Writes those DumpBytes(state) bytes and returns their end.
  virtual char* WriteDump(const std::byte* state, char* out) const = 0;
  // Restores the state from one SingleOptimizerDump. Throws std::invalid_argument if it is
  // malformed, of another optimizer, or of another length; `state` is undefined then.
  virtual void ParseDump(std::string_view single_optimizer_dump, std::byte* state) const = 0;

  // What every dump is long, or 0 if that depends on the state.
  [[nodiscard]] virtual std::size_t fixed_dump_bytes() const { return 0; }
  // A shortcut around ParseDump for what WriteDump wrote: restores the state from
  // fixed_dump_bytes() bytes. Returns false, with `state` undefined, if they are laid out in
  // another way, as those of other writers may be.
  [[nodiscard]] virtual bool ReadDump(const char* dump, std::byte* state) const {
    (void)dump, (void)state;
    return false;
  }

  // The same as WriteDump, at the end of `optimizer_dump`.
  void AppendDump(const std::byte* state, std::string* optimizer_dump) const;
};

// Throws std::invalid_argument: `dim` is 0, no optimizer is set, the optimizer cannot be chosen by
// a config (dc), or a setting is out of range.
[[nodiscard]] std::unique_ptr<Optimizer> MakeOptimizer(const OptimizerConfig& config,
                                                       std::size_t dim);

// Delayed compensation: corrects a gradient that was computed on `latest`, the weights a worker had
// read some steps ago, for what `w` has become since: g + lambda * g^2 * (w - latest).
// Not an Optimizer, since a step needs `latest`; no config leads here.
class DcOptimizer {
 public:
  DcOptimizer(std::unique_ptr<Optimizer> base, float lambda);

  [[nodiscard]] const Optimizer& base() const { return *base_; }

  void Step(float* w, std::byte* state, const float* grad, const float* latest, float learning_rate,
            std::int64_t global_step) const;

 private:
  std::unique_ptr<Optimizer> base_;
  float lambda_;
};

}  // namespace monolith::core
