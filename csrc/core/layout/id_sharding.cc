#include "core/layout/id_sharding.h"

#include <algorithm>
#include <limits>
#include <map>
#include <stdexcept>
#include <utility>

#include "core/table/id_numbers.h"

namespace monolith::core {
namespace {

constexpr std::size_t kMost = std::numeric_limits<std::int32_t>::max();

[[noreturn]] void Fail(const std::string& message) { throw std::invalid_argument(message); }

}  // namespace

IdSharding::IdSharding(const LayoutConfig& config, const std::vector<std::string>& sub_tables,
                       const std::vector<FeatureIds>& features, std::int64_t batch_size,
                       std::int64_t num_servers, bool unique)
    : config_(config),
      features_(features),
      batch_size_(batch_size),
      num_servers_(num_servers),
      unique_(unique) {
  if (num_servers_ < 1) {
    Fail("`ps_num` must be at least 1, got " + std::to_string(num_servers_) + ".");
  }
  CheckFeatures();
  MakeRows(sub_tables);
  MakeOffsets();
}

void IdSharding::CheckFeatures() {
  if (features_.size() != config_.features.size()) {
    Fail("There must be ids of each of the " + std::to_string(config_.features.size()) +
         " features, got " + std::to_string(features_.size()) + ".");
  }
  for (std::size_t f = 0; f < features_.size(); ++f) {
    const FeatureIds& feature = features_[f];
    const std::string who = "Feature '" + config_.features[f].name + "' ";
    if (feature.splits.size == 0) continue;
    const std::size_t num_lists = feature.splits.size - 1;
    const auto expected =
        feature.is_shared ? std::size_t{1} : static_cast<std::size_t>(batch_size_);
    if (num_lists != expected) {
      Fail(who + "must have the ids of " + std::to_string(expected) +
           " examples, as the batch, got " + std::to_string(num_lists) + ".");
    }
    if (feature.splits[0] != 0 ||
        feature.splits[num_lists] != static_cast<std::int64_t>(feature.ids.size)) {
      Fail(who + "has row splits that do not go from 0 to the number of its ids.");
    }
    for (std::size_t i = 0; i < num_lists; ++i) {
      if (feature.splits[i + 1] < feature.splits[i]) Fail(who + "has row splits that fall.");
    }
  }
}

void IdSharding::MakeRows(const std::vector<std::string>& sub_tables) {
  if (!sub_tables.empty() && sub_tables.size() != features_.size()) {
    Fail("`sub_tables` must be empty, or have a name for each of the " +
         std::to_string(features_.size()) + " features, got " + std::to_string(sub_tables.size()) +
         ".");
  }
  std::map<std::pair<std::size_t, std::string>, std::vector<std::size_t>> grouped;
  for (std::size_t f = 0; f < features_.size(); ++f) {
    const std::string& name = sub_tables.empty() ? config_.features[f].name : sub_tables[f];
    grouped[{config_.features[f].table_index, name}].push_back(f);
  }
  std::vector<std::size_t> in_table(config_.tables.size(), 0);
  for (auto& [key, features] : grouped) {
    Row row;
    row.table = key.first;
    row.sub_table = key.second;
    row.index_in_table = in_table[row.table]++;
    row.dim = config_.features[features.front()].dim;
    for (const std::size_t f : features) {
      if (config_.features[f].dim != row.dim) {
        Fail("Features '" + config_.features[features.front()].name + "' and '" +
             config_.features[f].name + "' share a table, but their rows have " +
             std::to_string(row.dim) + " and " + std::to_string(config_.features[f].dim) +
             " floats.");
      }
    }
    row.features = std::move(features);
    rows_.push_back(std::move(row));
  }
}

void IdSharding::MakeOffsets() {
  std::size_t num_ids = 0;
  std::size_t num_lists = 0;
  for (const FeatureIds& feature : features_) {
    num_ids += feature.ids.size;
    num_lists += feature.splits.size;
  }
  if (num_ids > kMost || num_lists > kMost) {
    Fail("A batch can have at most 2^31 ids, and lists of them.");
  }
  first_id_.reserve(features_.size());
  nfl_offset_.reserve(features_.size());
  feature_offset_.reserve(num_lists);
  std::size_t first = 0;
  for (const FeatureIds& feature : features_) {
    first_id_.push_back(first);
    nfl_offset_.push_back(static_cast<std::uint32_t>(feature_offset_.size()) |
                          (feature.is_shared ? kSharedFeature : 0));
    for (std::size_t i = 0; i + 1 < feature.splits.size; ++i) {
      feature_offset_.push_back(static_cast<std::int32_t>(first) +
                                static_cast<std::int32_t>(feature.splits[i]));
    }
    first += feature.ids.size;
  }
  fid_offset_.resize(num_ids);
}

void IdSharding::Number(std::size_t which) {
  Row& row = rows_[which];
  std::size_t num_ids = 0;
  for (const std::size_t f : row.features) num_ids += features_[f].ids.size;
  row.number_of.resize(num_ids);
  std::size_t k = 0;
  if (unique_) {
    IdNumbers numbers(num_ids);
    for (const std::size_t f : row.features) {
      const auto& ids = features_[f].ids;
      for (std::size_t i = 0; i < ids.size; ++i) row.number_of[k++] = numbers.Add(ids[i]);
    }
    row.distinct = std::move(numbers).TakeIds();
  } else {
    row.distinct.reserve(num_ids);
    for (const std::size_t f : row.features) {
      const auto& ids = features_[f].ids;
      row.distinct.insert(row.distinct.end(), ids.data, ids.data + ids.size);
    }
    for (; k < num_ids; ++k) row.number_of[k] = static_cast<std::uint32_t>(k);
  }
  row.num_on.assign(static_cast<std::size_t>(num_servers_), 0);
  row.position.resize(row.distinct.size());
  for (std::size_t i = 0; i < row.distinct.size(); ++i) {
    row.position[i] = static_cast<std::uint32_t>(row.num_on[ServerOf(row.distinct[i])]++);
  }
}

void IdSharding::Place() {
  const auto num_servers = static_cast<std::size_t>(num_servers_);
  const std::size_t num_lists = config_.tables.size() * num_servers;
  row_splits_.assign(num_lists, {0});
  first_float_.assign(num_lists, {0});
  for (const Row& row : rows_) {
    for (std::size_t server = 0; server < num_servers; ++server) {
      const std::size_t list = row.table * num_servers + server;
      row_splits_[list].push_back(row_splits_[list].back() + row.num_on[server]);
      first_float_[list].push_back(first_float_[list].back() + row.num_on[server] * row.dim);
    }
  }
  ids_.resize(num_lists);
  emb_size_.resize(num_lists);
  for (std::size_t list = 0; list < num_lists; ++list) {
    if (first_float_[list].back() > static_cast<std::int64_t>(kMost)) {
      Fail("The rows of a batch have " + std::to_string(first_float_[list].back()) +
           " floats on one server, and can have 2^31; make the batch smaller.");
    }
    emb_size_[list] = static_cast<std::int32_t>(first_float_[list].back());
    ids_[list].resize(static_cast<std::size_t>(row_splits_[list].back()));
  }
}

void IdSharding::Fill(std::size_t which) {
  const Row& row = rows_[which];
  const auto num_servers = static_cast<std::size_t>(num_servers_);
  for (std::size_t i = 0; i < row.distinct.size(); ++i) {
    const std::size_t list = row.table * num_servers + ServerOf(row.distinct[i]);
    const auto first = static_cast<std::size_t>(row_splits_[list][row.index_in_table]);
    ids_[list][first + row.position[i]] = row.distinct[i];
  }
  std::size_t k = 0;
  for (const std::size_t f : row.features) {
    const auto& ids = features_[f].ids;
    for (std::size_t i = 0; i < ids.size; ++i, ++k) {
      const std::size_t list = row.table * num_servers + ServerOf(ids[i]);
      const std::int64_t place =
          first_float_[list][row.index_in_table] +
          static_cast<std::int64_t>(row.position[row.number_of[k]]) * row.dim;
      fid_offset_[first_id_[f] + i] =
          static_cast<std::uint64_t>(list) << 32 | static_cast<std::uint64_t>(place);
    }
  }
}

}  // namespace monolith::core
