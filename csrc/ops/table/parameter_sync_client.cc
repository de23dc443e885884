#include "ops/table/parameter_sync_client.h"

#include <algorithm>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/wire/wire.h"

namespace monolith::ops {
namespace {

namespace tf = tensorflow;

// Fields of PredictRequest of TensorFlow Serving, of entries of a map, and of TensorProto.
constexpr std::uint32_t kInputs = 2;
constexpr std::uint32_t kKey = 1;
constexpr std::uint32_t kValue = 2;
constexpr std::uint32_t kDtype = 1;
constexpr std::uint32_t kShape = 2;
constexpr std::uint32_t kDim = 2;
constexpr std::uint32_t kSize = 1;
constexpr std::uint32_t kContent = 4;
constexpr std::uint64_t kFloat = 1;
constexpr std::uint64_t kInt64 = 9;

// Puts an input into a request; `content` is the numbers as they are in memory.
void AddInput(const std::string& name, std::uint64_t dtype, const std::vector<std::int64_t>& dims,
              std::string_view content, std::string* request) {
  std::string shape;
  for (const std::int64_t size : dims) {
    std::string dim;
    core::WireWriter(&dim).Varint(kSize, static_cast<std::uint64_t>(size));
    core::WireWriter(&shape).Bytes(kDim, dim);
  }
  std::string tensor;
  core::WireWriter writer(&tensor);
  writer.Varint(kDtype, dtype);
  writer.Bytes(kShape, shape);
  writer.Bytes(kContent, content);
  std::string entry;
  core::WireWriter(&entry).Bytes(kKey, name);
  core::WireWriter(&entry).Bytes(kValue, tensor);
  core::WireWriter(request).Bytes(kInputs, entry);
}

template <typename Number>
std::string_view AsBytes(const std::vector<Number>& numbers) {
  return {reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(Number)};
}

void AddIds(const std::string& name, const std::vector<std::int64_t>& ids, std::string* request) {
  AddInput(name, kInt64, {static_cast<std::int64_t>(ids.size())}, AsBytes(ids), request);
}

using IdsOf = std::vector<std::int64_t> core::RowsToSend::*;

std::int64_t CountIds(const std::vector<core::RowsToSend>& rows, IdsOf which) {
  std::int64_t count = 0;
  for (const core::RowsToSend& of_table : rows) {
    count += static_cast<std::int64_t>((of_table.*which).size());
  }
  return count;
}

// The ids of all tables in one list, and where those of each begin.
void AddSplitIds(const std::vector<core::RowsToSend>& rows, IdsOf which, std::string* request) {
  std::vector<std::int64_t> ids;
  std::vector<std::int64_t> split{0};
  for (const core::RowsToSend& of_table : rows) {
    const std::vector<std::int64_t>& own = of_table.*which;
    ids.insert(ids.end(), own.begin(), own.end());
    split.push_back(static_cast<std::int64_t>(ids.size()));
  }
  AddIds("id", ids, request);
  AddIds("id_split", split, request);
}

// A call for the tables of a set, all of which are in it.
SyncRequest MakeMultiRequest(const std::string& set, const std::vector<core::RowsToSend>& rows,
                             bool is_removal) {
  SyncRequest request;
  const IdsOf which = is_removal ? &core::RowsToSend::removed : &core::RowsToSend::ids;
  request.signature = absl::StrCat(set, is_removal ? "/raw_remove" : "/raw_assign");
  request.num_ids = CountIds(rows, which);
  AddSplitIds(rows, which, &request.body);
  if (is_removal) return request;
  std::vector<float> values;
  for (const core::RowsToSend& of_table : rows) {
    values.insert(values.end(), of_table.values.begin(), of_table.values.end());
  }
  AddInput("flat_value", kFloat, {static_cast<std::int64_t>(values.size())}, AsBytes(values),
           &request.body);
  return request;
}

// A call for single tables, all of which are in it: a model's function wants all its inputs.
SyncRequest MakeSingleRequest(const std::string& signature, const std::vector<std::string>& names,
                              const core::Follower::Tables& tables,
                              const std::vector<core::RowsToSend>& rows, bool is_removal) {
  SyncRequest request;
  const IdsOf which = is_removal ? &core::RowsToSend::removed : &core::RowsToSend::ids;
  request.signature = signature;
  request.num_ids = CountIds(rows, which);
  for (std::size_t t = 0; t < rows.size(); ++t) {
    AddIds(absl::StrCat(names[t], "_id"), rows[t].*which, &request.body);
    if (is_removal) continue;
    AddInput(absl::StrCat(names[t], "_value"), kFloat,
             {static_cast<std::int64_t>(rows[t].ids.size()),
              static_cast<std::int64_t>(tables[t]->dim())},
             AsBytes(rows[t].values), &request.body);
  }
  return request;
}

std::vector<std::int64_t> TakeIds(core::TouchedRows& rows, bool* complete) {
  *complete = rows.Gather().complete && *complete;
  std::vector<std::int64_t> ids = rows.Pending();
  rows.Forget();
  return ids;
}

}  // namespace

absl::Status ParameterSyncClient::Follow(TableSet* set, bool is_multi) {
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
    found->second->set = tf::core::WeakPtr<TableSet>(set);
  }
  if (is_multi) multi_name_ = set->name();
  return absl::OkStatus();
}

void ParameterSyncClient::Touched(const std::string& name, const std::int64_t* ids, std::size_t n) {
  const std::shared_lock<std::shared_mutex> lock(followed_mutex_);
  const auto found = by_name_.find(name);
  if (found != by_name_.end()) found->second->touched.Insert(ids, n);
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
  for (Followed* f : ListFollowed()) {
    tf::core::RefCountPtr<TableSet> set;
    {
      const std::shared_lock<std::shared_mutex> lock(followed_mutex_);
      set = f->set.GetNewRef();
    }
    // A restore puts other tables in their place; a set may be gone, as with a session.
    std::shared_ptr<core::EmbeddingTable> table;
    if (set != nullptr) table = (*set->tables())[f->index];
    if (table != f->table) {
      f->table = std::move(table);
      f->once_removed.clear();
      are_others = true;
    }
    if (f->table != nullptr) found.push_back(f);
  }
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
  // Ids that the filter has held back have no row, and never had one.
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
    progress.push_back({static_cast<std::int64_t>(follower.num_outstanding()),
                        follower.is_caught_up() && !in_round_.empty()});
  }
  return progress;
}

std::vector<SyncRequest> ParameterSyncClient::Take(const std::string& target,
                                                   const std::string& assign_signature,
                                                   std::size_t max_bytes,
                                                   std::size_t max_requests) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<SyncRequest> requests;
  const auto found = targets_.find(target);
  if (found == targets_.end() || in_round_.empty()) return requests;
  core::Follower::Tables tables;
  std::vector<std::string> names;
  for (const Followed* f : in_round_) {
    tables.push_back(f->table.get());
    names.push_back(f->name);
  }
  std::string multi_name;
  {
    const std::shared_lock<std::shared_mutex> followed_lock(followed_mutex_);
    multi_name = multi_name_;
  }
  while (requests.size() < max_requests) {
    const std::vector<core::RowsToSend> rows = found->second->follower.Take(tables, max_bytes);
    const std::size_t before = requests.size();
    for (const bool is_removal : {false, true}) {
      SyncRequest request =
          multi_name.empty() ? MakeSingleRequest(is_removal ? "hashtable_remove" : assign_signature,
                                                 names, tables, rows, is_removal)
                             : MakeMultiRequest(multi_name, rows, is_removal);
      if (request.num_ids > 0) requests.push_back(std::move(request));
    }
    if (requests.size() == before) break;
  }
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

}  // namespace monolith::ops
