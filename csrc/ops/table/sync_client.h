// Who hears which ids training has changed, so that serving can follow.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "tensorflow/core/framework/resource_mgr.h"

namespace monolith::ops {

class TableSet;

// Thread-safe.
class SyncClient : public tensorflow::ResourceBase {
 public:
  // From now on hears of the tables of `set`; does nothing if it does already.
  [[nodiscard]] virtual absl::Status Follow(TableSet* set, bool is_multi) = 0;
  // The rows of `ids` of table `name` were updated or made.
  virtual void Touched(const std::string& name, const std::int64_t* ids, std::size_t n) = 0;
  // Rows of table `name` were removed.
  virtual void Removed(const std::string& name, const std::int64_t* ids, std::size_t n) = 0;
  // Whether anybody wants to know which rows were removed.
  [[nodiscard]] virtual bool is_listening() const = 0;
};

// For tables that nobody follows.
class DummySyncClient final : public SyncClient {
 public:
  absl::Status Follow(TableSet*, bool) override { return absl::OkStatus(); }
  void Touched(const std::string&, const std::int64_t*, std::size_t) override {}
  void Removed(const std::string&, const std::int64_t*, std::size_t) override {}
  [[nodiscard]] bool is_listening() const override { return false; }
  [[nodiscard]] std::string DebugString() const override { return "DummySyncClient"; }
};

}  // namespace monolith::ops
