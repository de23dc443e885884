// Who hears which ids training has changed, so that serving can follow.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "tensorflow/core/framework/resource_mgr.h"

namespace monolith::ops {

// Thread-safe.
class SyncClient : public tensorflow::ResourceBase {
 public:
  // `ids` of table `name` were updated or made.
  virtual void Touched(const std::string& name, const std::int64_t* ids, std::size_t n) = 0;
};

// For tables that nobody follows.
class DummySyncClient final : public SyncClient {
 public:
  void Touched(const std::string&, const std::int64_t*, std::size_t) override {}
  [[nodiscard]] std::string DebugString() const override { return "DummySyncClient"; }
};

}  // namespace monolith::ops
