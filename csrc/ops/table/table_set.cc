#include "ops/table/table_set.h"

#include <chrono>
#include <stdexcept>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/filter/table_filter.h"
#include "ops/system/handles.h"

namespace monolith::ops {
namespace {

namespace tf = tensorflow;

constexpr std::chrono::seconds kEvictionPoll{10};

// The filter of a table that has a threshold of its own; null for others, which share one. Tables
// that serve get their rows from those that train, and hold none back.
std::unique_ptr<core::AdmissionFilter> MakeTableFilter(const core::EmbeddingHashTableConfig& config,
                                                       const std::string& table,
                                                       const std::string& counted_as,
                                                       core::SharedFilter* shared) {
  if (!config.occurrence_threshold.has_value() ||
      config.entry_config.entry_type == core::EntryConfig::Type::kServing) {
    return nullptr;
  }
  const std::uint32_t threshold = *config.occurrence_threshold;
  if (threshold > 0 && shared->max_threshold() == 0) {
    throw std::invalid_argument(absl::StrCat(
        "`occurrence_threshold` of table ", table, " is ", threshold,
        ", but its filter admits every id; give the table a filter that holds ids back, or leave "
        "the threshold out."));
  }
  if (threshold > shared->max_threshold()) {
    throw std::invalid_argument(absl::StrCat(
        "`occurrence_threshold` of table ", table, " is ", threshold, ", but its filter counts to ",
        shared->max_threshold(), "; lower the threshold, or take a probabilistic filter."));
  }
  return std::make_unique<core::TableFilter>(shared, counted_as, threshold);
}

// Rows and memory are those of a table alone.
void AddCounts(const core::TableStats& from, core::TableStats* to) {
  to->admitted += from.admitted;
  to->expired += from.expired;
  to->held_back += from.held_back;
}

}  // namespace

TableSet::TableSet(std::string name, std::string serialized_config,
                   std::vector<std::string> table_names, std::vector<std::string> counted_as,
                   const std::vector<core::EmbeddingHashTableConfig>& configs,
                   tf::core::RefCountPtr<FilterResource> filter,
                   tf::core::RefCountPtr<SyncClient> sync_client)
    : name_(std::move(name)),
      serialized_config_(std::move(serialized_config)),
      table_names_(std::move(table_names)),
      counted_as_(std::move(counted_as)),
      filter_(std::move(filter)),
      sync_client_(std::move(sync_client)),
      replaced_(configs.size()) {
  Tables tables;
  for (std::size_t i = 0; i < configs.size(); ++i) {
    const core::EmbeddingHashTableConfig& config = configs[i];
    table_filters_.push_back(
        MakeTableFilter(config, table_names_[i], counted_as_[i], filter_->filter()));
    tables.push_back(std::make_shared<core::EmbeddingTable>(config));
    if (config.entry_config.entry_type == core::EntryConfig::Type::kServing) {
      is_for_training_ = false;
    } else {
      num_learning_rates_ += tables.back()->accessor().num_segments();
    }
  }
  tables_ = std::make_shared<const Tables>(std::move(tables));
  for (std::size_t i = 0; i < configs.size(); ++i) {
    if (!configs[i].enable_feature_eviction) continue;
    evictors_.push_back(std::make_unique<core::Evictor>(
        kEvictionPoll, std::chrono::hours(configs[i].feature_evict_every_n_hours), [this, i] {
          const std::shared_ptr<core::EmbeddingTable> table = (*this->tables())[i];
          const std::size_t evicted = EvictRows(*this, i, *table, table->max_update_sec());
          LOG(INFO) << "Evicted " << evicted << " expired rows of " << table_names_[i];
        }));
  }
}

std::shared_ptr<const TableSet::Tables> TableSet::tables() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return tables_;
}

void TableSet::Replace(Tables tables) {
  auto fresh = std::make_shared<const Tables>(std::move(tables));
  const std::lock_guard<std::mutex> lock(mutex_);
  for (std::size_t i = 0; i < fresh->size(); ++i) {
    const auto& old = (*tables_)[i];
    if (old != (*fresh)[i]) AddCounts(old->Stats(), &replaced_[i]);
  }
  tables_.swap(fresh);
}

std::vector<core::TableStats> TableSet::Stats() const {
  std::shared_ptr<const Tables> tables;
  std::vector<core::TableStats> replaced;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    tables = tables_;
    replaced = replaced_;
  }
  std::vector<core::TableStats> stats;
  for (std::size_t i = 0; i < tables->size(); ++i) {
    stats.push_back((*tables)[i]->Stats());
    AddCounts(replaced[i], &stats.back());
  }
  return stats;
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
  const std::shared_ptr<const Tables> current = tables();
  for (std::size_t i = 0; i < current->size(); ++i) {
    parts.push_back(absl::StrCat("\"", table_names_[i], "\": ", (*current)[i]->DebugString()));
  }
  return absl::StrCat("{", absl::StrJoin(parts, ", "), "}");
}

std::size_t EvictRows(const TableSet& set, std::size_t index, core::EmbeddingTable& table,
                      std::int64_t max_update_sec) {
  core::TouchedRows* touched = set.touched_rows(index);
  const bool is_followed = set.sync_client()->is_listening();
  if (touched == nullptr && !is_followed) return table.Evict(max_update_sec);
  std::vector<std::int64_t> evicted;
  table.Evict(max_update_sec, &evicted);
  if (touched != nullptr) touched->Insert(evicted.data(), evicted.size());
  if (is_followed) {
    set.sync_client()->Removed(set.table_names()[index], evicted.data(), evicted.size());
  }
  return evicted.size();
}

absl::Status GetTableSet(tf::OpKernelContext* ctx, int index,
                         tf::core::RefCountPtr<TableSet>* set) {
  return FindResource(ctx, index, set);
}

}  // namespace monolith::ops
