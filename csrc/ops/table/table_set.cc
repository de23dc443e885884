#include "ops/table/table_set.h"

#include <chrono>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "ops/system/handles.h"

namespace monolith::ops {
namespace {

namespace tf = tensorflow;

constexpr std::chrono::seconds kEvictionPoll{10};

}  // namespace

TableSet::TableSet(std::string name, std::string serialized_config,
                   std::vector<std::string> table_names,
                   const std::vector<core::EmbeddingHashTableConfig>& configs,
                   tf::core::RefCountPtr<FilterResource> filter,
                   tf::core::RefCountPtr<SyncClient> sync_client)
    : name_(std::move(name)),
      serialized_config_(std::move(serialized_config)),
      table_names_(std::move(table_names)),
      filter_(std::move(filter)),
      sync_client_(std::move(sync_client)) {
  for (const core::EmbeddingHashTableConfig& config : configs) {
    tables_.push_back(std::make_shared<core::EmbeddingTable>(config));
    if (config.entry_config.entry_type == core::EntryConfig::Type::kServing) {
      is_for_training_ = false;
    } else {
      num_learning_rates_ += tables_.back()->accessor().num_segments();
    }
  }
  for (std::size_t i = 0; i < configs.size(); ++i) {
    if (!configs[i].enable_feature_eviction) continue;
    evictors_.push_back(std::make_unique<core::Evictor>(
        kEvictionPoll, std::chrono::hours(configs[i].feature_evict_every_n_hours), [this, i] {
          const std::shared_ptr<core::EmbeddingTable> table = tables()[i];
          const std::size_t evicted = EvictRows(*this, i, *table, table->max_update_sec());
          LOG(INFO) << "Evicted " << evicted << " expired rows of " << table_names_[i];
        }));
  }
}

TableSet::Tables TableSet::tables() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return tables_;
}

void TableSet::Replace(Tables tables) {
  const std::lock_guard<std::mutex> lock(mutex_);
  tables_.swap(tables);
}

void TableSet::TrackTouched(std::size_t capacity) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (touched_rows_ != nullptr) return;
  auto touched = std::make_unique<TouchedRowsOfTables>();
  for (std::size_t i = 0; i < size(); ++i) {
    touched->push_back(std::make_unique<core::TouchedRows>(capacity));
  }
  touched_rows_ = std::move(touched);
  tracked_.store(touched_rows_.get(), std::memory_order_release);
}

std::string TableSet::DebugString() const {
  std::vector<std::string> parts;
  const Tables current = tables();
  for (std::size_t i = 0; i < current.size(); ++i) {
    parts.push_back(absl::StrCat("\"", table_names_[i], "\": ", current[i]->DebugString()));
  }
  return absl::StrCat("{", absl::StrJoin(parts, ", "), "}");
}

std::size_t EvictRows(const TableSet& set, std::size_t index, core::EmbeddingTable& table,
                      std::int64_t max_update_sec) {
  core::TouchedRows* touched = set.touched_rows(index);
  if (touched == nullptr) return table.Evict(max_update_sec);
  std::vector<std::int64_t> evicted;
  table.Evict(max_update_sec, &evicted);
  touched->Insert(evicted.data(), evicted.size());
  return evicted.size();
}

absl::Status GetTableSet(tf::OpKernelContext* ctx, int index,
                         tf::core::RefCountPtr<TableSet>* set) {
  return FindResource(ctx, index, set);
}

}  // namespace monolith::ops
