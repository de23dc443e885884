// The one place where an exception of the core becomes a Status.
#pragma once

#include <exception>
#include <new>
#include <stdexcept>
#include <utility>

#include "absl/status/status.h"

namespace monolith::ops {

// Runs `fn` and reports what it threw. An exception that leaves a kernel, or a closure handed to a
// thread pool, ends the process, so every call into the core goes through here.
template <typename Fn>
[[nodiscard]] absl::Status Guard(Fn&& fn) {
  try {
    std::forward<Fn>(fn)();
    return absl::OkStatus();
  } catch (const std::invalid_argument& e) {
    return absl::InvalidArgumentError(e.what());
  } catch (const std::out_of_range& e) {
    return absl::OutOfRangeError(e.what());
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("There is not enough memory for what this op allocates.");
  } catch (const std::exception& e) {
    return absl::InternalError(e.what());
  }
}

}  // namespace monolith::ops
