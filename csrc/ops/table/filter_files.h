// Saves a sliding filter to files and reads them back, one file per split.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "core/filter/sliding_hash_filter.h"
#include "tensorflow/core/platform/env.h"

namespace monolith::ops {

// Writes `basename-00000-of-0000N` and so on, each under a temporary name until all are complete.
[[nodiscard]] absl::Status SaveFilter(tensorflow::Env* env, const std::string& basename,
                                      core::SlidingHashFilter* filter);

// Replaces the filter's state by the saved one, or leaves it as it is and reports:
//   NotFound           a file is missing;
//   DataLoss           a file is damaged, truncated or of another save than the others;
//   ResourceExhausted  the files are of a filter with other dimensions.
// Every message names the file.
[[nodiscard]] absl::Status RestoreFilter(tensorflow::Env* env, const std::string& basename,
                                         core::SlidingHashFilter* filter);

}  // namespace monolith::ops
