// What one follower of some tables, such as a server that serves their rows, has yet to be told.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <unordered_set>
#include <vector>

#include "core/table/embedding_table.h"

namespace monolith::core {

// Rows of one table on their way to a follower.
struct RowsToSend {
  std::vector<std::int64_t> ids;      // Of rows that are there,
  std::vector<float> values;          // which are these, [ids, dim].
  std::vector<std::int64_t> removed;  // Of rows that are gone.

  [[nodiscard]] std::size_t size() const { return ids.size() + removed.size(); }
};

// Keeps ids, never rows: what is sent is what the tables have at that moment. What was taken stays
// on its way until it is settled, and a failure puts it back, so nothing is lost. Memory is
// bounded: with more than `capacity` ids outstanding they are forgotten, and all rows of the tables
// are walked instead, place by place, beside whatever changes meanwhile.
//
// A walk finds the rows that are there. Which rows a follower has beyond those only it can say: so
// after a walk it is asked for the ids that it has, a few at a time, and those without a row here
// are sent as removed.
//
// What was sent without an answer may still arrive, after what was sent later. So once a follower
// has answered again for a while, the same ids are sent once more.
//
// Not thread-safe.
class Follower {
 public:
  using Tables = std::vector<const EmbeddingTable*>;

  // Starts with a walk over all tables: nobody knows what a new follower has.
  Follower(std::size_t num_tables, std::size_t capacity);

  // Rows of a table were changed, made or removed.
  void Add(std::size_t table, const std::int64_t* ids, std::size_t n);
  // Forgets what was outstanding, and walks over `num_tables` tables from the beginning. To one
  // that is new, nothing is on its way that could still arrive.
  void StartOver(std::size_t num_tables, bool is_new = false);
  // How often that has happened, also by itself. A follower that cannot say which ids it has does
  // not lose those that are gone by a walk: whoever knows of some adds them then.
  [[nodiscard]] std::uint64_t num_walks() const { return num_walks_; }

  // Takes at most about `max_bytes` of ids and rows; empty if there is nothing to send. More may be
  // taken before the first is settled; all that was taken is settled at once. `tables` are the same
  // in all calls, or StartOver came between.
  [[nodiscard]] std::vector<RowsToSend> Take(const Tables& tables, std::size_t max_bytes);
  // What was taken has arrived, or nobody knows that it has.
  void Settle(bool has_arrived, double now_sec);
  // To be called from time to time: brings ids back that have to be sent once more.
  void Refresh(double now_sec);

  // Which ids a follower is to be asked for.
  struct Question {
    std::size_t table;
    std::int64_t place;   // From here on, by its own count.
    std::size_t max_ids;  // So few that those without a row are no reason to forget them.
  };
  // The next question; none while there is something to take, or when all were answered.
  [[nodiscard]] std::optional<Question> Ask();
  // The answer, and the place to go on from, -1 if the table has no more. It does not count if
  // StartOver has come between: the next question is the first one again.
  void Compare(const Tables& tables, const std::vector<std::int64_t>& ids, std::int64_t next_place);
  // The follower does not know such questions, and is asked no more of them before a StartOver.
  void AskNoMore() { compared_tables_ = pending_.size(); }

  // Ids that are known to be outstanding, with those on their way.
  [[nodiscard]] std::size_t num_outstanding() const;
  // Whether rows are outstanding that only a walk will find.
  [[nodiscard]] bool is_walking() const { return walked_tables_ < pending_.size(); }
  // Whether it may have rows that are gone, of which nobody here knows.
  [[nodiscard]] bool is_comparing() const { return compared_tables_ < pending_.size(); }
  // Of what is known here, it has everything.
  [[nodiscard]] bool is_caught_up() const {
    return num_outstanding() == 0 && !is_walking() && !is_unsure();
  }

 private:
  using IdSet = std::unordered_set<std::int64_t>;

  [[nodiscard]] bool is_unsure() const { return is_unsure_of_all_ || num_doubtful_ > 0; }
  void PutBack();

  const std::size_t capacity_;
  std::size_t num_pending_ = 0;
  std::vector<IdSet> pending_;  // By table.
  std::size_t num_taken_ = 0;
  std::vector<std::vector<std::int64_t>> taken_;  // By table.
  // The walk: so many tables are done, and of the next one all places before this.
  std::size_t walked_tables_ = 0;
  std::uint64_t place_ = 0;
  std::uint64_t num_walks_ = 0;
  // The comparison: the same of the follower's tables.
  std::size_t compared_tables_ = 0;
  std::int64_t compared_place_ = 0;
  bool is_asked_ = false;
  // Sent without an answer.
  std::size_t num_doubtful_ = 0;
  std::vector<IdSet> doubtful_;
  bool is_unsure_of_all_ = false;
  std::optional<double> answers_since_sec_;
};

}  // namespace monolith::core
