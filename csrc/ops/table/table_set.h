// What a table handle refers to: one or several named tables.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/table/embedding_table.h"
#include "core/table/evictor.h"
#include "core/table/touched_rows.h"
#include "ops/table/filter_resource.h"
#include "ops/table/sync_client.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"

namespace monolith::ops {

// Single-table ops work on a set of one, the multi-table ops on any. Thread-safe.
class TableSet : public tensorflow::ResourceBase {
 public:
  using Tables = std::vector<std::shared_ptr<core::EmbeddingTable>>;

  // `serialized_config` is kept to refuse a second creation with another one. Throws
  // std::invalid_argument if a config does not describe a table.
  TableSet(std::string name, std::string serialized_config, std::vector<std::string> table_names,
           const std::vector<core::EmbeddingHashTableConfig>& configs,
           tensorflow::core::RefCountPtr<FilterResource> filter,
           tensorflow::core::RefCountPtr<SyncClient> sync_client);

  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] const std::string& serialized_config() const { return serialized_config_; }
  [[nodiscard]] const std::vector<std::string>& table_names() const { return table_names_; }
  [[nodiscard]] std::size_t size() const { return table_names_.size(); }
  // Learning rates that an update of all tables needs, table by table.
  [[nodiscard]] std::size_t num_learning_rates() const { return num_learning_rates_; }
  // Whether an update may happen at all; serving tables refuse it.
  [[nodiscard]] bool is_for_training() const { return is_for_training_; }

  // The tables as they are now. A restore puts new ones in their place: a call works on what it
  // began with, and the old tables go when the last call has ended.
  [[nodiscard]] Tables tables() const;
  void Replace(Tables tables);

  // From now on remembers which rows change, up to `capacity` ids a table, for incremental saves.
  // Does nothing if it does already. Throws std::invalid_argument if `capacity` is out of range.
  void TrackTouched(std::size_t capacity);
  // The changed rows of table `index`; null while nobody has asked to remember them.
  [[nodiscard]] core::TouchedRows* touched_rows(std::size_t index) const {
    const TouchedRowsOfTables* tracked = tracked_.load(std::memory_order_acquire);
    return tracked == nullptr ? nullptr : (*tracked)[index].get();
  }

  [[nodiscard]] core::AdmissionFilter* filter() const { return filter_->filter(); }
  [[nodiscard]] SyncClient* sync_client() const { return sync_client_.get(); }

  [[nodiscard]] std::string DebugString() const override;

 private:
  using TouchedRowsOfTables = std::vector<std::unique_ptr<core::TouchedRows>>;

  const std::string name_;
  const std::string serialized_config_;
  const std::vector<std::string> table_names_;
  const tensorflow::core::RefCountPtr<FilterResource> filter_;
  const tensorflow::core::RefCountPtr<SyncClient> sync_client_;
  std::size_t num_learning_rates_ = 0;
  bool is_for_training_ = true;
  mutable std::mutex mutex_;
  Tables tables_;
  std::unique_ptr<const TouchedRowsOfTables> touched_rows_;   // Guarded by the mutex.
  std::atomic<const TouchedRowsOfTables*> tracked_{nullptr};  // The same, for those in a hurry.
  std::vector<std::unique_ptr<core::Evictor>> evictors_;  // Last: they stop before the tables go.
};

// Evicts from `table`, number `index` of `set`, what has expired at `max_update_sec`.
std::size_t EvictRows(const TableSet& set, std::size_t index, core::EmbeddingTable& table,
                      std::int64_t max_update_sec);

// Looks up the set behind input `index`.
[[nodiscard]] absl::Status GetTableSet(tensorflow::OpKernelContext* ctx, int index,
                                       tensorflow::core::RefCountPtr<TableSet>* set);

}  // namespace monolith::ops
