// Keeps, for each server that serves the rows of some tables, which of them it has yet to get.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "core/row/serving_form.h"
#include "core/table/follower.h"
#include "core/table/touched_rows.h"
#include "ops/table/sync_client.h"
#include "ops/table/sync_requests.h"
#include "ops/table/table_set.h"

namespace monolith::ops {

// Where a server stands.
struct SyncProgress {
  std::int64_t num_outstanding = 0;
  bool is_caught_up = false;
};

// Follows either one set of tables, or any number of single ones. Updates of tables take no lock of
// this class but that of a map's reader, so whatever a server does, they do not wait for it.
//
// Thread-safe.
class ParameterSyncClient final : public SyncClient {
 public:
  // Ids that are kept for each server, and for each table between two rounds.
  static constexpr std::size_t kCapacity = std::size_t{1} << 21;

  explicit ParameterSyncClient(std::size_t capacity = kCapacity) : capacity_(capacity) {}

  absl::Status Follow(TableSet* set, bool is_multi) override;
  void Touched(const std::string& name, const std::int64_t* ids, std::size_t n) override;
  void Removed(const std::string& name, const std::int64_t* ids, std::size_t n) override;
  [[nodiscard]] bool is_listening() const override { return true; }
  [[nodiscard]] std::string DebugString() const override { return "ParameterSyncClient"; }

  // A round: these are the servers now, and all of them have to get what has changed since the last
  // round. Who was not there in the last round gets everything.
  std::vector<SyncProgress> Gather(const std::vector<std::string>& targets, double now_sec);
  // The next calls for a server, at most so many, of about `max_bytes` each; none if it has all, or
  // is not one of the servers. If `packed`, rows are as they are served, where that is not floats
  // anyway and all tables say what it is. If `lists`, and there is nothing else to send, a server
  // may be asked for ids that it has: by the call of no ids, whose answer goes to Compare.
  std::vector<SyncRequest> Take(const std::string& target, const std::string& assign_signature,
                                std::size_t max_bytes, std::size_t max_requests,
                                bool packed = false, bool lists = false);
  // Says of all calls taken for a server whether they have arrived.
  void Settle(const std::string& target, bool has_arrived, double now_sec);
  // A server has another model than before: it gets everything.
  void StartOver(const std::string& target);
  // The ids that a server has, as it was asked; it goes on at `next_place`, or has no more (-1).
  void Compare(const std::string& target, const std::vector<std::int64_t>& ids,
               std::int64_t next_place);
  // A server does not know how to say that.
  void AskNoMore(const std::string& target);

 private:
  struct Followed {
    Followed(std::string name, std::size_t index, std::size_t capacity)
        : name(std::move(name)), index(index), touched(capacity), removed(capacity) {}

    const std::string name;
    const std::size_t index;  // In its set.
    tensorflow::core::WeakPtr<TableSet> set{nullptr};
    core::TouchedRows touched;
    core::TouchedRows removed;
    // The rest is guarded by mutex_.
    std::shared_ptr<core::EmbeddingTable> table;  // As of the last round,
    std::uint64_t restores = 0;                   // and how often it had been restored then.
    std::unique_ptr<core::ServingForm> form;      // Of its rows; null: nobody has said how.
    std::unordered_set<std::int64_t> once_removed;
  };
  struct Target {
    explicit Target(std::size_t num_tables, std::size_t capacity)
        : follower(num_tables, capacity) {}
    core::Follower follower;
    std::uint64_t walks_seen = 0;
  };

  [[nodiscard]] std::vector<Followed*> ListFollowed() const;
  // Finds the tables as they are now; has all servers start over if they are others.
  void FindTables();
  void GatherTable(std::size_t number, Followed& table);
  // The tables of this round; with their forms, if rows travel in them.
  [[nodiscard]] SyncedTables ListTables(bool packed) const;
  // Adds rows that are gone where a walk has begun, which does not find them.
  void AddOnceRemoved();

  const std::size_t capacity_;

  mutable std::shared_mutex followed_mutex_;
  std::string multi_name_;  // Empty: single tables.
  std::vector<std::unique_ptr<Followed>> followed_;
  std::unordered_map<std::string, Followed*> by_name_;

  // Whether there was an update: what is restored was restored before.
  std::atomic<bool> has_begun_{false};

  std::mutex mutex_;
  std::vector<Followed*> in_round_;  // The tables that targets are followers of.
  // Whether these have their rows: before a training has restored them, all rows would be gone.
  bool are_filled_ = false;
  std::map<std::string, std::unique_ptr<Target>> targets_;
};

}  // namespace monolith::ops
