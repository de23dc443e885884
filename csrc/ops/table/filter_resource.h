// The TensorFlow resource around an admission filter, one type for all kinds of filter.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "core/filter/admission_filter.h"
#include "core/filter/sliding_hash_filter.h"
#include "tensorflow/core/framework/resource_mgr.h"

namespace monolith::ops {

// Thread-safe, as the filter is.
class FilterResource : public tensorflow::ResourceBase {
 public:
  // `settings` says in words what the filter was made from; filters with equal words are equal.
  FilterResource(std::unique_ptr<core::SharedFilter> filter, std::string settings)
      : filter_(std::move(filter)),
        sliding_(dynamic_cast<core::SlidingHashFilter*>(filter_.get())),
        settings_(std::move(settings)) {}

  [[nodiscard]] core::SharedFilter* filter() { return filter_.get(); }
  // The same filter if it is of the kind that counts and has something to save, else null.
  [[nodiscard]] core::SlidingHashFilter* sliding() { return sliding_; }
  [[nodiscard]] const std::string& settings() const { return settings_; }
  [[nodiscard]] std::string DebugString() const override { return settings_; }

 private:
  const std::unique_ptr<core::SharedFilter> filter_;
  core::SlidingHashFilter* const sliding_;
  const std::string settings_;
};

}  // namespace monolith::ops
