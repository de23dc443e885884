#include "core/table/follower.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <set>

#include "core/testing/tables.h"

namespace monolith::core {
namespace {

constexpr std::size_t kDim = 2;
constexpr std::size_t kRowBytes = sizeof(std::int64_t) + kDim * sizeof(float);
constexpr std::size_t kMuch = std::size_t{1} << 20;

void Put(EmbeddingTable& table, std::int64_t id, float value) {
  const float row[kDim] = {value, -value};
  table.Assign(&id, 1, row, {});
}

// Stands for a row that was removed, where its place is to stay.
constexpr float kGone = -1000;

// What a server has: the first number of each row.
using Served = std::map<std::int64_t, float>;

void Apply(const RowsToSend& rows, Served* served) {
  ASSERT_EQ(rows.values.size(), rows.ids.size() * kDim);
  for (std::size_t i = 0; i < rows.ids.size(); ++i) {
    (*served)[rows.ids[i]] = rows.values[i * kDim];
    EXPECT_EQ(rows.values[i * kDim + 1], -rows.values[i * kDim]);
  }
  for (const std::int64_t id : rows.removed) served->erase(id);
}

// Sends until there is nothing more; returns in how many messages.
int SendAll(Follower& follower, const EmbeddingTable& table, std::size_t max_bytes, Served* served,
            double now_sec = 0) {
  for (int sent = 0;; ++sent) {
    const std::vector<RowsToSend> rows = follower.Take({&table}, max_bytes);
    if (rows[0].size() == 0) return sent;
    EXPECT_LE(rows[0].size() * kRowBytes, std::max(max_bytes, kRowBytes));
    Apply(rows[0], served);
    follower.Settle(true, now_sec);
  }
}

TEST(FollowerTest, ANewOneGetsAllRowsInMessagesOfTheSizeAskedFor) {
  EmbeddingTable table(testing::SgdTable(kDim));
  for (int id = 0; id < 10; ++id) Put(table, id, 1.0f + id);
  Follower follower(1, 100);
  EXPECT_TRUE(follower.is_walking());
  Served served;
  EXPECT_EQ(SendAll(follower, table, 3 * kRowBytes, &served), 4);  // 3 + 3 + 3 + 1 rows.
  EXPECT_TRUE(follower.is_caught_up());
  ASSERT_EQ(served.size(), 10u);
  for (int id = 0; id < 10; ++id) EXPECT_EQ(served[id], 1.0f + id);
}

TEST(FollowerTest, SendsWhatTheTableHasThenAndSaysWhichRowsAreGone) {
  EmbeddingTable table(testing::SgdTable(kDim));
  Follower follower(1, 100);
  Served served;
  EXPECT_EQ(SendAll(follower, table, kMuch, &served), 0);
  Put(table, 7, 1);
  Put(table, 8, 2);
  const std::int64_t ids[] = {7, 8, 7};
  follower.Add(0, ids, 3);
  EXPECT_EQ(follower.num_outstanding(), 2u);
  Put(table, 7, 3);  // Too late for `Add`, and early enough for the message.
  table.Erase(&ids[1], 1);
  const std::vector<RowsToSend> rows = follower.Take({&table}, kMuch);
  EXPECT_EQ(rows[0].ids, std::vector<std::int64_t>{7});
  EXPECT_EQ(rows[0].values, (std::vector<float>{3, -3}));
  EXPECT_EQ(rows[0].removed, std::vector<std::int64_t>{8});
}

TEST(FollowerTest, WhatFailsIsSentAgainAndOnceMoreWhenLateMessagesAreOver) {
  EmbeddingTable table(testing::SgdTable(kDim));
  Follower follower(1, 100);
  Served served;
  SendAll(follower, table, kMuch, &served);
  Put(table, 7, 1);
  const std::int64_t id = 7;
  follower.Add(0, &id, 1);
  const std::vector<RowsToSend> late = follower.Take({&table}, kMuch);
  follower.Settle(false, 10);
  EXPECT_EQ(follower.num_outstanding(), 1u);
  Put(table, 7, 2);
  EXPECT_EQ(SendAll(follower, table, kMuch, &served, 11), 1);
  EXPECT_EQ(served[7], 2);
  Apply(late[0], &served);  // The server wakes up and acts on the old message.
  EXPECT_FALSE(follower.is_caught_up());
  follower.Refresh(12);
  EXPECT_EQ(follower.num_outstanding(), 0u);
  follower.Refresh(16);
  EXPECT_EQ(SendAll(follower, table, kMuch, &served, 16), 1);
  EXPECT_EQ(served[7], 2);
  EXPECT_TRUE(follower.is_caught_up());
}

TEST(FollowerTest, BeyondItsCapacityItForgetsIdsAndWalks) {
  EmbeddingTable table(testing::SgdTable(kDim));
  Follower follower(1, 4);
  Served served;
  SendAll(follower, table, kMuch, &served);
  EXPECT_EQ(follower.num_walks(), 1u);
  for (std::int64_t id = 0; id < 5; ++id) {
    Put(table, id, 9);
    follower.Add(0, &id, 1);
  }
  EXPECT_EQ(follower.num_walks(), 2u);
  EXPECT_EQ(follower.num_outstanding(), 0u);
  SendAll(follower, table, 2 * kRowBytes, &served);
  EXPECT_EQ(served.size(), 5u);
  EXPECT_TRUE(follower.is_caught_up());
}

TEST(FollowerTest, ChangesGoBeforeAWalk) {
  EmbeddingTable table(testing::SgdTable(kDim));
  for (int id = 0; id < 100; ++id) Put(table, id, 1);
  Follower follower(1, 1000);
  (void)follower.Take({&table}, kRowBytes);
  follower.Settle(true, 0);
  const std::int64_t ids[] = {98, 99};
  follower.Add(0, ids, 2);
  const std::vector<RowsToSend> rows = follower.Take({&table}, 2 * kRowBytes);
  EXPECT_EQ(std::set<std::int64_t>(rows[0].ids.begin(), rows[0].ids.end()),
            (std::set<std::int64_t>{98, 99}));
  EXPECT_TRUE(follower.is_walking());
}

TEST(FollowerTest, OneThatIsNewHasNothingOnItsWay) {
  EmbeddingTable table(testing::SgdTable(kDim));
  Put(table, 1, 1);
  Follower follower(1, 100);
  (void)follower.Take({&table}, kMuch);
  follower.Settle(false, 0);
  follower.StartOver(1, /*is_new=*/true);
  Served served;
  EXPECT_EQ(SendAll(follower, table, kMuch, &served), 1);
  EXPECT_TRUE(follower.is_caught_up());
}

// What a server answers: at most so many of its ids from a place on, which counts ids here.
void Answer(Follower& follower, const EmbeddingTable& table, const Follower::Question& question,
            const Served& served) {
  std::vector<std::int64_t> ids;
  auto next = served.begin();
  std::advance(next, question.place);
  while (next != served.end() && ids.size() < question.max_ids) ids.push_back((next++)->first);
  const auto place = question.place + static_cast<std::int64_t>(ids.size());
  follower.Compare({&table}, ids, next == served.end() ? -1 : place);
}

// Sends and asks until there is nothing more; returns how many questions that took.
int SendAndCompareAll(Follower& follower, const EmbeddingTable& table, Served* served) {
  for (int asked = 0;; ++asked) {
    SendAll(follower, table, kMuch, served);
    const auto question = follower.Ask();
    if (!question.has_value()) return asked;
    // What is removed would not be counted again: the places of a table stay where they are.
    const Served before = *served;
    Answer(follower, table, *question, before);
    const std::vector<RowsToSend> rows = follower.Take({&table}, kMuch);
    EXPECT_LE(rows[0].removed.size(), question->max_ids);
    for (const std::int64_t id : rows[0].removed) (*served)[id] = kGone;
    follower.Settle(true, 0);
  }
}

TEST(FollowerTest, RowsThatAreGoneAreFoundByAskingHoweverManyThereAre) {
  EmbeddingTable table(testing::SgdTable(kDim));
  Follower follower(1, 8);
  Served served;
  for (std::int64_t id = 0; id < 20; ++id) served[id] = 1;  // From an older export.
  Put(table, 19, 5);
  Put(table, 20, 6);
  EXPECT_TRUE(follower.is_comparing());
  // Two at a time, a quarter of the capacity: 21 ids.
  EXPECT_EQ(SendAndCompareAll(follower, table, &served), 11);
  EXPECT_FALSE(follower.is_comparing());
  EXPECT_EQ(follower.num_walks(), 1u);
  for (std::int64_t id = 0; id < 19; ++id) EXPECT_EQ(served[id], kGone) << id;
  EXPECT_EQ(served[19], 5);
  EXPECT_EQ(served[20], 6);
}

TEST(FollowerTest, AsksOnlyWhenThereIsNothingToSend) {
  EmbeddingTable table(testing::SgdTable(kDim));
  Put(table, 1, 1);
  Follower follower(1, 100);
  EXPECT_FALSE(follower.Ask().has_value());  // The walk comes first.
  Served served;
  SendAll(follower, table, kMuch, &served);
  const std::int64_t id = 1;
  follower.Add(0, &id, 1);
  EXPECT_FALSE(follower.Ask().has_value());
  (void)follower.Take({&table}, kMuch);
  EXPECT_FALSE(follower.Ask().has_value());  // On its way.
  follower.Settle(true, 0);
  EXPECT_TRUE(follower.Ask().has_value());
}

TEST(FollowerTest, AnAnswerFromBeforeAStartOverDoesNotCount) {
  EmbeddingTable table(testing::SgdTable(kDim));
  Follower follower(1, 100);
  Served served;
  SendAll(follower, table, kMuch, &served);
  ASSERT_TRUE(follower.Ask().has_value());
  follower.StartOver(1);
  follower.Compare({&table}, {7}, -1);
  EXPECT_EQ(follower.num_outstanding(), 0u);
  EXPECT_TRUE(follower.is_comparing());
  SendAll(follower, table, kMuch, &served);
  EXPECT_EQ(follower.Ask()->place, 0);
}

TEST(FollowerTest, OneThatDoesNotKnowTheQuestionIsAskedNoMoreUntilItStartsOver) {
  EmbeddingTable table(testing::SgdTable(kDim));
  Follower follower(1, 100);
  Served served;
  SendAll(follower, table, kMuch, &served);
  ASSERT_TRUE(follower.Ask().has_value());
  follower.AskNoMore();
  EXPECT_FALSE(follower.is_comparing());
  EXPECT_FALSE(follower.Ask().has_value());
  follower.StartOver(1, /*is_new=*/true);
  SendAll(follower, table, kMuch, &served);
  EXPECT_TRUE(follower.Ask().has_value());
}

}  // namespace
}  // namespace monolith::core
