// Threads that go through the parts of one op together. When to take them: see parallel.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "tensorflow/core/framework/op_kernel.h"

namespace monolith::ops {

// The calling thread, and helpers from TensorFlow's intra-op threads.
//
// To wake a thread takes as long as a part of a small op. So helpers are called once per op and
// then stay awake until it ends, and for a while longer in case another op wants them. No part
// waits for a helper that is busy elsewhere or late: whoever is free takes the next piece.
class Crew {
 public:
  static constexpr std::size_t kMaxParts = 2;

  // Calls at most `helpers`; fewer if the device has fewer threads besides this one.
  Crew(tensorflow::OpKernelContext* ctx, std::int64_t helpers);
  ~Crew();
  Crew(const Crew&) = delete;
  Crew& operator=(const Crew&) = delete;

  // Calls `fn(piece)` for each of [0, pieces) and returns when all are done. For pieces of at most
  // some hundred microseconds, since it waits awake; at most kMaxParts times. `fn` must not throw.
  void ForEach(std::int64_t pieces, const std::function<void(std::int64_t)>& fn);

 private:
  class Job;

  std::shared_ptr<Job> job_;  // Null without helpers: nothing is shared then.
  std::size_t num_parts_ = 0;
};

}  // namespace monolith::ops
