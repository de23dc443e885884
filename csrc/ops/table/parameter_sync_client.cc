#include "ops/table/parameter_sync_client.h"

#include <algorithm>
#include <stdexcept>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace monolith::ops {
namespace {

namespace tf = tensorflow;

std::vector<std::int64_t> TakeIds(core::TouchedRows& rows, bool* complete) {
  *complete = rows.Gather().complete && *complete;
  std::vector<std::int64_t> ids = rows.Pending();
  rows.Forget();
  return ids;
}

// Null if the table's config does not say how its rows are served.
std::unique_ptr<core::ServingForm> FindForm(const core::EmbeddingTable& table) {
  try {
    return std::make_unique<core::ServingForm>(table.config().entry_config);
  } catch (const std::invalid_argument&) {
    return nullptr;
  }
}

}  // namespace

absl::Status ParameterSyncClient::Follow(TableSet* set, bool is_multi) {
  // Let go of when the lock is: sets that end may be about to call Removed.
  std::vector<tf::core::RefCountPtr<TableSet>> earlier;
  const std::unique_lock<std::shared_mutex> lock(followed_mutex_);
  if (!followed_.empty() && is_multi != !multi_name_.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("Only one type of tables can be set. ",
                                                   is_multi ? "HashTable" : "MultiHashTable",
                                                   " is set."));
  }
  if (is_multi && !multi_name_.empty() && multi_name_ != set->name()) {
    return absl::AlreadyExistsError("The sync client is set a mtable resource already.");
  }
  for (std::size_t i = 0; i < set->size(); ++i) {
    const std::string& name = set->table_names()[i];
    auto [found, is_new] = by_name_.try_emplace(name, nullptr);
    if (is_new) {
      followed_.push_back(std::make_unique<Followed>(name, i, capacity_));
      found->second = followed_.back().get();
    }
    earlier.push_back(found->second->set.GetNewRef());
    if (earlier.back().get() != set) has_begun_.store(false);
    found->second->set = tf::core::WeakPtr<TableSet>(set);
  }
  if (is_multi) multi_name_ = set->name();
  return absl::OkStatus();
}

void ParameterSyncClient::Touched(const std::string& name, const std::int64_t* ids, std::size_t n) {
  const std::shared_lock<std::shared_mutex> lock(followed_mutex_);
  const auto found = by_name_.find(name);
  if (found == by_name_.end()) return;
  found->second->touched.Insert(ids, n);
  // Looked at first: all threads that update would take turns to write it.
  if (!has_begun_.load(std::memory_order_relaxed)) has_begun_.store(true);
}

void ParameterSyncClient::Removed(const std::string& name, const std::int64_t* ids, std::size_t n) {
  const std::shared_lock<std::shared_mutex> lock(followed_mutex_);
  const auto found = by_name_.find(name);
  if (found != by_name_.end()) found->second->removed.Insert(ids, n);
}

std::vector<ParameterSyncClient::Followed*> ParameterSyncClient::ListFollowed() const {
  const std::shared_lock<std::shared_mutex> lock(followed_mutex_);
  std::vector<Followed*> list;
  for (const auto& followed : followed_) list.push_back(followed.get());
  return list;
}

void ParameterSyncClient::FindTables() {
  std::vector<Followed*> found;
  bool are_others = false;
  // Before the tables: if there was an update, they are those that were restored before it.
  are_filled_ = has_begun_.load();
  for (Followed* f : ListFollowed()) {
    tf::core::RefCountPtr<TableSet> set;
    {
      const std::shared_lock<std::shared_mutex> lock(followed_mutex_);
      set = f->set.GetNewRef();
    }
    // A restore puts other tables in their place, or other rows; a set may be gone, as with a
    // session.
    std::shared_ptr<core::EmbeddingTable> table;
    std::uint64_t restores = 0;
    if (set != nullptr) {
      restores = set->num_restores();
      table = (*set->tables())[f->index];
    }
    if (table != f->table || restores != f->restores) {
      f->table = std::move(table);
      f->restores = restores;
      f->form = f->table == nullptr ? nullptr : FindForm(*f->table);
      f->once_removed.clear();
      are_others = true;
    }
    if (f->table != nullptr) found.push_back(f);
  }
  are_filled_ = are_filled_ || std::all_of(found.begin(), found.end(),
                                           [](const Followed* f) { return f->restores > 0; });
  if (!are_others && found == in_round_) return;
  in_round_ = std::move(found);
  for (auto& [name, target] : targets_) target->follower.StartOver(in_round_.size());
}

void ParameterSyncClient::GatherTable(std::size_t number, Followed& followed) {
  bool complete = true;
  std::vector<std::int64_t> changed = TakeIds(followed.touched, &complete);
  const std::vector<std::int64_t> removed = TakeIds(followed.removed, &complete);
  if (!complete) {
    for (auto& [name, target] : targets_) target->follower.StartOver(in_round_.size());
  }
  // Of a row that has come and gone since the last round no server has heard; if it was there
  // before, it is among the removed ones.
  std::vector<std::uint8_t> present(changed.size());
  followed.table->LookupPresent(changed.data(), changed.size(), nullptr, present.data());
  std::size_t kept = 0;
  for (std::size_t i = 0; i < changed.size(); ++i) {
    if (present[i] != 0) changed[kept++] = changed[i];
  }
  changed.resize(kept);
  changed.insert(changed.end(), removed.begin(), removed.end());
  // Half, so that a server that gets them all has room for what changes meanwhile.
  if (followed.once_removed.size() + removed.size() > capacity_ / 2) followed.once_removed.clear();
  if (removed.size() <= capacity_ / 2) {
    followed.once_removed.insert(removed.begin(), removed.end());
  }
  for (auto& [name, target] : targets_) {
    target->follower.Add(number, changed.data(), changed.size());
  }
}

void ParameterSyncClient::AddOnceRemoved() {
  for (auto& [name, target] : targets_) {
    if (target->walks_seen == target->follower.num_walks()) continue;
    target->walks_seen = target->follower.num_walks();
    for (std::size_t t = 0; t < in_round_.size(); ++t) {
      const auto& gone = in_round_[t]->once_removed;
      const std::vector<std::int64_t> ids(gone.begin(), gone.end());
      target->follower.Add(t, ids.data(), ids.size());
    }
  }
}

std::vector<SyncProgress> ParameterSyncClient::Gather(const std::vector<std::string>& targets,
                                                      double now_sec) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (auto it = targets_.begin(); it != targets_.end();) {
    const bool stays = std::find(targets.begin(), targets.end(), it->first) != targets.end();
    it = stays ? std::next(it) : targets_.erase(it);
  }
  FindTables();
  for (const std::string& name : targets) {
    auto& target = targets_[name];
    if (target == nullptr) target = std::make_unique<Target>(in_round_.size(), capacity_);
  }
  for (std::size_t t = 0; t < in_round_.size(); ++t) GatherTable(t, *in_round_[t]);
  std::vector<SyncProgress> progress;
  for (const std::string& name : targets) targets_.at(name)->follower.Refresh(now_sec);
  AddOnceRemoved();
  for (const std::string& name : targets) {
    const core::Follower& follower = targets_.at(name)->follower;
    // Before the first table is made, nobody knows what there will be to send.
    const bool is_caught_up =
        follower.is_caught_up() && !in_round_.empty() && !(follower.is_comparing() && are_filled_);
    progress.push_back({static_cast<std::int64_t>(follower.num_outstanding()), is_caught_up});
  }
  return progress;
}

SyncedTables ParameterSyncClient::ListTables(bool packed) const {
  SyncedTables synced;
  bool have_form = packed;
  bool are_floats = true;
  for (const Followed* f : in_round_) {
    synced.tables.push_back(f->table.get());
    synced.names.push_back(f->name);
    synced.forms.push_back(f->form.get());
    have_form = have_form && f->form != nullptr;
    are_floats = are_floats && f->form != nullptr && f->form->is_raw();
  }
  // Floats go to the function that servers of any version have.
  if (!have_form || are_floats) synced.forms.clear();
  const std::shared_lock<std::shared_mutex> followed_lock(followed_mutex_);
  synced.multi_name = multi_name_;
  return synced;
}

std::vector<SyncRequest> ParameterSyncClient::Take(const std::string& target,
                                                   const std::string& assign_signature,
                                                   std::size_t max_bytes, std::size_t max_requests,
                                                   bool packed, bool lists) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<SyncRequest> requests;
  const auto found = targets_.find(target);
  if (found == targets_.end() || in_round_.empty()) return requests;
  const SyncedTables synced = ListTables(packed);
  while (requests.size() < max_requests) {
    const std::vector<core::RowsToSend> rows =
        found->second->follower.Take(synced.tables, max_bytes);
    const std::size_t before = requests.size();
    for (const bool is_removal : {false, true}) {
      SyncRequest request = MakeSyncRequest(synced, rows, assign_signature, is_removal);
      if (request.num_ids > 0) requests.push_back(std::move(request));
    }
    if (requests.size() == before) break;
  }
  if (!lists || !requests.empty() || !are_filled_) return requests;
  const auto question = found->second->follower.Ask();
  if (question.has_value()) requests.push_back(MakeListRequest(synced, *question));
  return requests;
}

void ParameterSyncClient::Settle(const std::string& target, bool has_arrived, double now_sec) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = targets_.find(target);
  if (found != targets_.end()) found->second->follower.Settle(has_arrived, now_sec);
}

void ParameterSyncClient::StartOver(const std::string& target) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = targets_.find(target);
  if (found == targets_.end()) return;
  found->second->follower.StartOver(in_round_.size(), /*is_new=*/true);
  AddOnceRemoved();
}

void ParameterSyncClient::Compare(const std::string& target, const std::vector<std::int64_t>& ids,
                                  std::int64_t next_place) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = targets_.find(target);
  if (found == targets_.end()) return;
  found->second->follower.Compare(ListTables(/*packed=*/false).tables, ids, next_place);
}

void ParameterSyncClient::AskNoMore(const std::string& target) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = targets_.find(target);
  if (found != targets_.end()) found->second->follower.AskNoMore();
}

}  // namespace monolith::ops
