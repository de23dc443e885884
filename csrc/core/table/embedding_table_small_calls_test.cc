// Calls of a few ids: they take the locks of their own stripes only, and work as all others do.
// Run under ThreadSanitizer with `make test-tsan`.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <future>
#include <map>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "core/table/embedding_table.h"
#include "core/table/hash.h"
#include "core/table/hash_parts.h"
#include "core/testing/tables.h"

namespace monolith::core {
namespace {

using testing::AssignAll;
using testing::LookupAll;
using testing::LookupOne;
using testing::RunThreads;
using testing::SgdTable;
using Ids = std::vector<std::int64_t>;
using Floats = std::vector<float>;

#if defined(MONOLITH_SANITIZED)
constexpr int kScale = 20;  // Everything takes many times as long.
#else
constexpr int kScale = 1;
#endif

// `n` ids of each stripe in [first, last), from `start` on.
Ids IdsOfStripes(std::size_t first, std::size_t last, std::size_t n, std::int64_t start = 0) {
  Ids ids;
  std::map<std::size_t, std::size_t> found;
  for (std::int64_t id = start; ids.size() < n * (last - first); ++id) {
    const std::size_t stripe = StripeOf(HashId(id));
    if (stripe < first || stripe >= last || found[stripe] == n) continue;
    ++found[stripe];
    ids.push_back(id);
  }
  return ids;
}

// Holds whoever asks, and with him the lock of the id's stripe, until it is opened.
class Gate final : public AdmissionFilter {
 public:
  bool Admit(std::int64_t, std::uint32_t) override {
    std::unique_lock<std::mutex> lock(mutex_);
    asked_ = true;
    changed_.notify_all();
    changed_.wait(lock, [&] { return open_; });
    return true;
  }

  void WaitUntilAsked() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return asked_; });
  }

  void Open() {
    const std::lock_guard<std::mutex> lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool asked_ = false;
  bool open_ = false;
};

enum class Write { kAssign, kOptimize, kOptimizeSummed };

void RunWrite(EmbeddingTable& table, Write write, const Ids& ids, const WriteOptions& options) {
  const Floats ones(ids.size() * table.dim(), 1.0f);
  const float rate = 1.0f;
  if (write == Write::kAssign) table.AssignAdd(ids.data(), ids.size(), ones.data(), options);
  if (write == Write::kOptimize) {
    table.Optimize(ids.data(), ids.size(), ones.data(), &rate, 1, options);
  }
  if (write == Write::kOptimizeSummed) {
    table.OptimizeSummed(ids.data(), ids.size(), ones.data(), &rate, 1, options);
  }
}

class SmallCallsTest : public ::testing::TestWithParam<Write> {};

TEST_P(SmallCallsTest, StripesOfOtherIdsAreFree) {
  EmbeddingTable table(SgdTable(2));
  const Ids others = IdsOfStripes(1, 64, 1);
  AssignAll(table, others, 5.0f);
  Gate gate;
  WriteOptions options;
  options.filter = &gate;
  auto held = std::async(std::launch::async, [&] {
    RunWrite(table, GetParam(), IdsOfStripes(0, 1, 3), options);  // Waits at the first id.
  });
  gate.WaitUntilAsked();
  auto free = std::async(std::launch::async, [&] {
    for (const std::size_t n : {1u, 16u, 63u}) {
      const Ids ids(others.begin(), others.begin() + static_cast<std::ptrdiff_t>(n));
      EXPECT_EQ(LookupAll(table, ids), Floats(n * 2, 5.0f));
      RunWrite(table, GetParam(), ids, {});
      AssignAll(table, ids, 5.0f);
    }
    EXPECT_EQ(table.Erase(others.data(), 10), 10u);
  });
  // Not for ever if it is broken: then the gate opens, and the test fails.
  EXPECT_EQ(free.wait_for(std::chrono::seconds(60)), std::future_status::ready);
  gate.Open();
  held.get();
  free.get();
  EXPECT_EQ(table.size(), 3u + 53u);
}

std::string NameOf(const ::testing::TestParamInfo<Write>& info) {
  constexpr const char* kNames[] = {"Assign", "Optimize", "OptimizeSummed"};
  return kNames[static_cast<std::size_t>(info.param)];
}
INSTANTIATE_TEST_SUITE_P(Writes, SmallCallsTest,
                         ::testing::Values(Write::kAssign, Write::kOptimize,
                                           Write::kOptimizeSummed),
                         NameOf);

// Around the number of ids from which on a call is worked off in another way.
TEST(SmallCallsModelTest, CallsOfAllSizesAgreeWithAMap) {
  EmbeddingTable table(SgdTable(1));
  std::map<std::int64_t, float> model;
  std::mt19937_64 random(3);
  const float rate = 1.0f;
  for (int round = 0; round < 4000 / kScale; ++round) {
    const std::size_t n = random() % 70;
    Ids ids(n);
    Floats values(n);
    for (std::size_t i = 0; i < n; ++i) {
      ids[i] = static_cast<std::int64_t>(random() % 200) - 100;  // Many of them equal.
      values[i] = static_cast<float>(static_cast<int>(random() % 9) - 4);
    }
    switch (random() % 6) {
      case 0:
        table.Assign(ids.data(), n, values.data(), {});
        for (std::size_t i = 0; i < n; ++i) model[ids[i]] = values[i];
        break;
      case 1:
        table.AssignAdd(ids.data(), n, values.data(), {});
        for (std::size_t i = 0; i < n; ++i) model[ids[i]] += values[i];
        break;
      case 2:
        table.Optimize(ids.data(), n, values.data(), &rate, 1, {});
        for (std::size_t i = 0; i < n; ++i) model[ids[i]] -= values[i];
        break;
      case 3:
        table.OptimizeSummed(ids.data(), n, values.data(), &rate, 1, {});
        for (std::size_t i = 0; i < n; ++i) model[ids[i]] -= values[i];
        break;
      case 4: {
        std::size_t erased = 0;
        for (const std::int64_t id : ids) erased += model.erase(id);
        EXPECT_EQ(table.Erase(ids.data(), n), erased);
        break;
      }
      default: {
        std::vector<std::int32_t> status(n);
        table.Reinitialize(ids.data(), n, 1, status.data());
        for (std::size_t i = 0; i < n; ++i) {
          EXPECT_EQ(status[i], static_cast<std::int32_t>(model.count(ids[i])));
          model[ids[i]] = 0.0f;
        }
      }
    }
    Floats found(n, -1.0f);
    std::size_t present = 0;
    for (std::size_t i = 0; i < n; ++i) present += model.count(ids[i]);
    ASSERT_EQ(table.Lookup(ids.data(), n, found.data()), present);
    for (std::size_t i = 0; i < n; ++i) {
      const auto row = model.find(ids[i]);
      ASSERT_EQ(found[i], row == model.end() ? 0.0f : row->second) << "round " << round;
    }
    ASSERT_EQ(table.size(), model.size());
  }
}

// Calls of all sizes on the same few ids, so that their stripes overlap in every way.
TEST(SmallCallsConcurrencyTest, NoIncrementIsLostAndNobodyWaitsForEver) {
  constexpr int kThreads = 8;
  const int calls = 20'000 / kScale;
  constexpr std::size_t kDim = 4;
  const Ids all = IdsOfStripes(0, 64, 2);
  EmbeddingTable table(SgdTable(kDim));
  std::vector<std::map<std::int64_t, int>> added(kThreads);
  std::atomic<int> torn{0};
  RunThreads(kThreads, [&](int thread) {
    std::mt19937_64 random(static_cast<std::uint64_t>(thread));
    const float rate = 1.0f;
    for (int call = 0; call < calls; ++call) {
      const std::size_t n = call % 50 == 0 ? 300 : 1 + random() % 64;
      Ids ids(n);
      for (auto& id : ids) id = all[random() % all.size()];
      const Floats ones(n * kDim, 1.0f);
      const Floats minus(n * kDim, -1.0f);
      Floats rows(n * kDim);
      const auto what = random() % 4;
      if (what == 0) {
        table.Lookup(ids.data(), n, rows.data());
        for (std::size_t i = 0; i < n; ++i) {
          for (std::size_t d = 1; d < kDim; ++d) torn += rows[i * kDim + d] != rows[i * kDim];
        }
        continue;
      }
      if (what == 1) table.AssignAdd(ids.data(), n, ones.data(), {});
      if (what == 2) table.Optimize(ids.data(), n, minus.data(), &rate, 1, {});
      if (what == 3) table.OptimizeSummed(ids.data(), n, minus.data(), &rate, 1, {});
      for (const std::int64_t id : ids) ++added[static_cast<std::size_t>(thread)][id];
    }
  });
  EXPECT_EQ(torn.load(), 0);
  for (const std::int64_t id : all) {
    int expected = 0;
    for (auto& of_thread : added) expected += of_thread[id];
    EXPECT_EQ(LookupOne(table, id), static_cast<float>(expected));
  }
}

}  // namespace
}  // namespace monolith::core
