#include "core/table/follower.h"

#include <algorithm>
#include <iterator>

namespace monolith::core {
namespace {

// A message that nobody waits for any more is acted on, or dropped, within this time of the
// server's first answer.
constexpr double kLateSec = 5.0;

// Of 8 bytes each: half of what a message is made for.
constexpr std::size_t kMostIdsOfQuestion = std::size_t{1} << 18;

std::size_t BytesOfRow(const EmbeddingTable& table) {
  return sizeof(std::int64_t) + table.dim() * sizeof(float);
}

// Divides ids into those with a row, which is read, and those without.
void ReadRows(const EmbeddingTable& table, const std::vector<std::int64_t>& ids, RowsToSend* rows) {
  const std::size_t dim = table.dim();
  std::vector<std::uint8_t> present(ids.size());
  rows->values.resize(ids.size() * dim);
  table.LookupPresent(ids.data(), ids.size(), rows->values.data(), present.data());
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (present[i] == 0) {
      rows->removed.push_back(ids[i]);
      continue;
    }
    const std::size_t to = rows->ids.size();
    if (to != i) {
      std::copy_n(rows->values.data() + i * dim, dim, rows->values.data() + to * dim);
    }
    rows->ids.push_back(ids[i]);
  }
  rows->values.resize(rows->ids.size() * dim);
}

}  // namespace

Follower::Follower(std::size_t num_tables, std::size_t capacity) : capacity_(capacity) {
  StartOver(num_tables, /*is_new=*/true);
}

void Follower::Add(std::size_t table, const std::int64_t* ids, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) num_pending_ += pending_[table].insert(ids[i]).second;
  if (num_pending_ > capacity_) StartOver(pending_.size());
}

void Follower::StartOver(std::size_t num_tables, bool is_new) {
  is_unsure_of_all_ = !is_new && (is_unsure_of_all_ || num_taken_ + num_doubtful_ > 0);
  // Fresh sets: those of before may have taken much memory.
  pending_ = std::vector<IdSet>(num_tables);
  doubtful_ = std::vector<IdSet>(num_tables);
  taken_ = std::vector<std::vector<std::int64_t>>(num_tables);
  num_pending_ = num_taken_ = num_doubtful_ = 0;
  walked_tables_ = 0;
  place_ = 0;
  compared_tables_ = 0;
  compared_place_ = 0;
  is_asked_ = false;
  ++num_walks_;
}

std::vector<RowsToSend> Follower::Take(const Tables& tables, std::size_t max_bytes) {
  std::vector<std::vector<std::int64_t>> ids(tables.size());
  std::size_t bytes = 0;
  // What has changed goes first, in all tables; a walk takes the room that is left.
  for (std::size_t t = 0; t < tables.size(); ++t) {
    const std::size_t bytes_of_row = BytesOfRow(*tables[t]);
    IdSet& pending = pending_[t];
    while (!pending.empty() && (bytes == 0 || bytes + bytes_of_row <= max_bytes)) {
      ids[t].push_back(*pending.begin());
      pending.erase(pending.begin());
      --num_pending_;
      bytes += bytes_of_row;
    }
  }
  for (std::size_t t = walked_tables_; t < tables.size() && t == walked_tables_; ++t) {
    const std::size_t bytes_of_row = BytesOfRow(*tables[t]);
    const std::size_t room = bytes >= max_bytes ? 0 : (max_bytes - bytes) / bytes_of_row;
    const std::size_t before = ids[t].size();
    place_ = tables[t]->ListIds(place_, tables[t]->num_places(),
                                std::max<std::size_t>(room, bytes == 0 ? 1 : 0), &ids[t]);
    bytes += (ids[t].size() - before) * bytes_of_row;
    if (before > 0) {  // The walk may meet what has changed.
      std::sort(ids[t].begin(), ids[t].end());
      ids[t].erase(std::unique(ids[t].begin(), ids[t].end()), ids[t].end());
    }
    if (place_ < tables[t]->num_places()) break;
    ++walked_tables_;
    place_ = 0;
  }
  std::vector<RowsToSend> rows(tables.size());
  for (std::size_t t = 0; t < tables.size(); ++t) {
    ReadRows(*tables[t], ids[t], &rows[t]);
    num_taken_ += ids[t].size();
    taken_[t].insert(taken_[t].end(), ids[t].begin(), ids[t].end());
  }
  return rows;
}

void Follower::Settle(bool has_arrived, double now_sec) {
  if (has_arrived) {
    for (std::vector<std::int64_t>& ids : taken_) std::vector<std::int64_t>().swap(ids);
    num_taken_ = 0;
    if (!answers_since_sec_.has_value()) answers_since_sec_ = now_sec;
    return;
  }
  answers_since_sec_.reset();
  PutBack();
}

void Follower::PutBack() {
  num_taken_ = 0;
  std::vector<std::vector<std::int64_t>> taken(taken_.size());
  taken.swap(taken_);
  for (std::size_t t = 0; t < taken.size(); ++t) {
    for (const std::int64_t id : taken[t]) num_doubtful_ += doubtful_[t].insert(id).second;
  }
  if (num_doubtful_ > capacity_) {
    doubtful_ = std::vector<IdSet>(doubtful_.size());
    num_doubtful_ = 0;
    is_unsure_of_all_ = true;
  }
  for (std::size_t t = 0; t < taken.size(); ++t) Add(t, taken[t].data(), taken[t].size());
}

void Follower::Refresh(double now_sec) {
  if (!is_unsure() || !answers_since_sec_.has_value() || now_sec - *answers_since_sec_ < kLateSec) {
    return;
  }
  std::vector<IdSet> doubtful(doubtful_.size());
  doubtful.swap(doubtful_);
  num_doubtful_ = 0;
  if (is_unsure_of_all_) {
    is_unsure_of_all_ = false;
    StartOver(pending_.size());
    return;
  }
  for (std::size_t t = 0; t < doubtful.size(); ++t) {
    const std::vector<std::int64_t> ids(doubtful[t].begin(), doubtful[t].end());
    Add(t, ids.data(), ids.size());
  }
}

std::optional<Follower::Question> Follower::Ask() {
  is_asked_ = !is_walking() && num_outstanding() == 0 && is_comparing();
  if (!is_asked_) return std::nullopt;
  // A quarter of the capacity, so that there is room for what changes meanwhile.
  const std::size_t max_ids = std::clamp<std::size_t>(capacity_ / 4, 1, kMostIdsOfQuestion);
  return Question{compared_tables_, compared_place_, max_ids};
}

void Follower::Compare(const Tables& tables, const std::vector<std::int64_t>& ids,
                       std::int64_t next_place) {
  if (!is_asked_) return;
  is_asked_ = false;
  const std::size_t table = compared_tables_;
  std::vector<std::uint8_t> present(ids.size());
  tables[table]->LookupPresent(ids.data(), ids.size(), nullptr, present.data());
  compared_place_ = std::max<std::int64_t>(next_place, 0);
  if (next_place < 0) ++compared_tables_;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (present[i] == 0) Add(table, &ids[i], 1);
  }
}

std::size_t Follower::num_outstanding() const { return num_pending_ + num_taken_; }

}  // namespace monolith::core
