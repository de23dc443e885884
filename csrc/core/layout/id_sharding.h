// The ids of a batch, divided among servers, and the offsets that lead from examples to their rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/layout/embedding_layout.h"
#include "core/layout/layout_config.h"

namespace monolith::core {

// The ids of a feature: those of example i are [splits[i], splits[i + 1]) of `ids`. A shared
// feature has one list for all examples, an absent one no splits at all.
struct FeatureIds {
  ArrayView<std::int64_t> ids;
  ArrayView<std::int64_t> splits;
  bool is_shared = false;
};

// Divides ids by their remainder. List `table * num_servers + server` gets the ids of a table that
// a server has. Inside of it the ids of each sub table stand together, sub tables sorted by name;
// equal ids of a sub table stand there once if `unique`.
//
// Sub tables are independent of each other, so threads can share the work:
//
//   IdSharding sharding(config, sub_tables, features, batch_size, num_servers, unique);
//   for each row: sharding.Number(row);    // In parallel.
//   sharding.Place();
//   for each row: sharding.Fill(row);      // In parallel.
class IdSharding {
 public:
  // `sub_tables` has a name for each feature of `config`; it may be empty: each is one of its own.
  // Throws std::invalid_argument if they, or the features, contradict each other.
  IdSharding(const LayoutConfig& config, const std::vector<std::string>& sub_tables,
             const std::vector<FeatureIds>& features, std::int64_t batch_size,
             std::int64_t num_servers, bool unique);

  // Sub tables, those of table 0 first.
  [[nodiscard]] std::size_t num_rows() const { return rows_.size(); }
  // May throw std::length_error.
  void Number(std::size_t row);
  // Throws std::invalid_argument if a list has more floats than an offset can name.
  void Place();
  void Fill(std::size_t row);

  // The ids of each list, and where those of each of its sub tables begin.
  [[nodiscard]] const std::vector<std::vector<std::int64_t>>& ids() const { return ids_; }
  [[nodiscard]] const std::vector<std::vector<std::int64_t>>& row_splits() const {
    return row_splits_;
  }
  [[nodiscard]] const std::vector<std::uint64_t>& fid_offset() const { return fid_offset_; }
  [[nodiscard]] const std::vector<std::int32_t>& feature_offset() const { return feature_offset_; }
  [[nodiscard]] const std::vector<std::uint32_t>& nfl_offset() const { return nfl_offset_; }
  // The floats of the rows of each list.
  [[nodiscard]] const std::vector<std::int32_t>& emb_size() const { return emb_size_; }

 private:
  struct Row {
    std::string sub_table;
    std::size_t table = 0;
    std::size_t index_in_table = 0;
    std::int64_t dim = 0;
    std::vector<std::size_t> features;
    std::vector<std::int64_t> distinct;    // Or all ids, if they need not be.
    std::vector<std::uint32_t> number_of;  // Of each id, among `distinct`.
    std::vector<std::uint32_t> position;   // Of each of `distinct`, among its server's.
    std::vector<std::int64_t> num_on;      // Of each server.
  };

  void CheckFeatures();
  void MakeRows(const std::vector<std::string>& sub_tables);
  void MakeOffsets();
  [[nodiscard]] std::size_t ServerOf(std::int64_t id) const {
    const std::int64_t remainder = id % num_servers_;
    return static_cast<std::size_t>(remainder < 0 ? remainder + num_servers_ : remainder);
  }

  const LayoutConfig& config_;
  const std::vector<FeatureIds>& features_;
  const std::int64_t batch_size_;
  const std::int64_t num_servers_;
  const bool unique_;
  std::vector<Row> rows_;
  std::vector<std::size_t> first_id_;  // Of each feature, in `fid_offset_`.
  std::vector<std::vector<std::int64_t>> ids_;
  std::vector<std::vector<std::int64_t>> row_splits_;
  std::vector<std::vector<std::int64_t>> first_float_;  // Of each sub table, by list.
  std::vector<std::uint64_t> fid_offset_;
  std::vector<std::int32_t> feature_offset_;
  std::vector<std::uint32_t> nfl_offset_;
  std::vector<std::int32_t> emb_size_;
};

}  // namespace monolith::core
