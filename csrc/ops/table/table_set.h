// What a table handle refers to: one or several named tables.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <vector>

#include "core/filter/admission_filter.h"
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

  // `serialized_config` is kept to refuse a second creation with another one. `counted_as` are the
  // names under which the filter counts the ids of tables with a threshold of their own, one for
  // each table. Throws std::invalid_argument if a config does not describe a table, or asks for a
  // threshold that the filter cannot keep to.
  TableSet(std::string name, std::string serialized_config, std::vector<std::string> table_names,
           std::vector<std::string> counted_as,
           const std::vector<core::EmbeddingHashTableConfig>& configs,
           tensorflow::core::RefCountPtr<FilterResource> filter,
           tensorflow::core::RefCountPtr<SyncClient> sync_client);

  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] const std::string& serialized_config() const { return serialized_config_; }
  [[nodiscard]] const std::vector<std::string>& table_names() const { return table_names_; }
  [[nodiscard]] const std::vector<std::string>& counted_as() const { return counted_as_; }
  [[nodiscard]] std::size_t size() const { return table_names_.size(); }
  // Learning rates that an update of all tables needs, table by table.
  [[nodiscard]] std::size_t num_learning_rates() const { return num_learning_rates_; }
  // Whether an update may happen at all; serving tables refuse it.
  [[nodiscard]] bool is_for_training() const { return is_for_training_; }

  // The tables as they are now. A restore may put new ones in their place: a call works on what it
  // began with, and the old tables go when the last call has ended.
  [[nodiscard]] std::shared_ptr<const Tables> tables() const;
  void Replace(Tables tables);
  // How often a restore has put other tables in their place, or other rows.
  [[nodiscard]] std::uint64_t num_restores() const { return num_restores_.load(); }
  void NoteRestore() { ++num_restores_; }

  // Held by a restore, and shared by saves: none of them sees a table that is half restored.
  [[nodiscard]] std::shared_mutex& files_mutex() const { return files_mutex_; }

  // Of each table, as it is now; its counts go on from those of the tables that a restore has
  // replaced.
  [[nodiscard]] std::vector<core::TableStats> Stats() const;

  // From now on remembers which rows change, up to `capacity` ids a table, for incremental saves.
  // Does nothing if it does already. Throws std::invalid_argument if `capacity` is out of range.
  void TrackTouched(std::size_t capacity);
  // The changed rows of table `index`; null while nobody has asked to remember them.
  [[nodiscard]] core::TouchedRows* touched_rows(std::size_t index) const {
    const TouchedRowsOfTables* tracked = tracked_.load(std::memory_order_acquire);
    return tracked == nullptr ? nullptr : (*tracked)[index].get();
  }

  // Whom table `index` asks before it makes a row.
  [[nodiscard]] core::AdmissionFilter* filter(std::size_t index) const {
    core::AdmissionFilter* own = table_filters_[index].get();
    return own != nullptr ? own : filter_->filter();
  }
  [[nodiscard]] SyncClient* sync_client() const { return sync_client_.get(); }

  [[nodiscard]] std::string DebugString() const override;

 private:
  using TouchedRowsOfTables = std::vector<std::unique_ptr<core::TouchedRows>>;

  const std::string name_;
  const std::string serialized_config_;
  const std::vector<std::string> table_names_;
  const std::vector<std::string> counted_as_;
  const tensorflow::core::RefCountPtr<FilterResource> filter_;
  const tensorflow::core::RefCountPtr<SyncClient> sync_client_;
  std::vector<std::unique_ptr<core::AdmissionFilter>> table_filters_;  // Null: the shared one.
  std::size_t num_learning_rates_ = 0;
  bool is_for_training_ = true;
  std::atomic<std::uint64_t> num_restores_{0};
  mutable std::shared_mutex files_mutex_;
  mutable std::mutex mutex_;
  std::shared_ptr<const Tables> tables_;
  std::vector<core::TableStats> replaced_;  // Counts of earlier tables. Guarded by the mutex.
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
