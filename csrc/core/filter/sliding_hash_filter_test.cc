#include "core/filter/sliding_hash_filter.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace monolith::core {
namespace {

using Records = std::vector<std::string>;  // Of one split.

SlotThresholds Thresholds(std::uint32_t threshold) {
  SlotOccurrenceThresholdConfig config;
  config.default_occurrence_threshold = threshold;
  return SlotThresholds(config);
}

// Ids with signatures of their own, so that none of the first 4096 ever shares a count.
std::int64_t DistinctId(std::int64_t i) { return (i << 17) + i; }

std::vector<bool> AdmitAll(SlidingHashFilter* filter, const std::vector<std::int64_t>& ids) {
  std::vector<bool> admitted;
  for (const std::int64_t id : ids) admitted.push_back(filter->Admit(id, 1));
  return admitted;
}

std::vector<Records> Save(SlidingHashFilter* filter) {
  SlidingHashFilter::Snapshot snapshot(filter);
  std::vector<Records> files(filter->split_num());
  for (std::size_t split = 0; split < files.size(); ++split) {
    snapshot.Write(split, [&](std::string_view record) { files[split].emplace_back(record); });
  }
  return files;
}

void Restore(SlidingHashFilter* filter, const std::vector<Records>& files) {
  SlidingHashFilter::Restoration restoration(filter);
  for (std::size_t split = 0; split < files.size(); ++split) {
    std::size_t next = 0;
    restoration.Read(split, [&](std::string_view* record) {
      if (next == files[split].size()) return false;
      *record = files[split][next++];
      return true;
    });
  }
  restoration.Commit();
}

std::string ErrorOfRestore(SlidingHashFilter* filter, const std::vector<Records>& files) {
  try {
    Restore(filter, files);
  } catch (const std::exception& e) {
    return e.what();
  }
  return "no error";
}

TEST(SlidingHashFilterTest, AdmitsAfterThresholdOccurrences) {
  SlidingHashFilter filter(100, 7, Thresholds(3));
  const std::vector<std::int64_t> ids = {1, 3 << 17, 1};
  EXPECT_EQ(AdmitAll(&filter, ids), (std::vector<bool>{false, false, false}));
  EXPECT_EQ(AdmitAll(&filter, ids), (std::vector<bool>{false, false, true}));
  EXPECT_EQ(AdmitAll(&filter, ids), (std::vector<bool>{true, false, true}));
  EXPECT_EQ(AdmitAll(&filter, ids), (std::vector<bool>{true, true, true}));
}

TEST(SlidingHashFilterTest, AdmitsAfterThresholdOccurrencesAcrossASave) {
  SlidingHashFilter filter(100, 7, Thresholds(3));
  const std::vector<std::int64_t> ids = {1, 3 << 17, 1};
  AdmitAll(&filter, ids);
  AdmitAll(&filter, ids);
  const auto files = Save(&filter);
  EXPECT_EQ(files.size(), 7u);
  SlidingHashFilter other(100, 7, Thresholds(3));
  Restore(&other, files);
  EXPECT_EQ(AdmitAll(&other, ids), (std::vector<bool>{true, false, true}));
  EXPECT_EQ(AdmitAll(&other, ids), (std::vector<bool>{true, true, true}));
}

TEST(SlidingHashFilterTest, HeadMovesWhenItsSplitIsFull) {
  SlidingHashFilter filter(300, 100, Thresholds(2));
  for (const auto& meta : filter.Metas()) {
    EXPECT_EQ(meta.total_size, 3u);
    EXPECT_EQ(meta.num_elements, 0u);
    EXPECT_EQ(meta.sliding.head, 0u);
    EXPECT_EQ(meta.sliding.head_increment, 0u);
    EXPECT_EQ(meta.sliding.split_num, 100u);
    EXPECT_EQ(meta.sliding.max_forward_step, 2u);
    EXPECT_EQ(meta.sliding.max_backward_step, 98u);
    EXPECT_EQ(meta.sliding.max_step, 16u);
    EXPECT_EQ(meta.fill_rate, 1.2);
  }
  const std::vector<std::int64_t> ids = {1, 1 << 17, 2 << 17, 1};
  EXPECT_EQ(AdmitAll(&filter, ids), (std::vector<bool>{false, false, false, false}));
  EXPECT_EQ(AdmitAll(&filter, ids), (std::vector<bool>{true, false, false, true}));
  const auto metas = filter.Metas();
  for (std::size_t split = 0; split < metas.size(); ++split) {
    EXPECT_EQ(metas[split].num_elements, split < 4 ? 2u : 0u) << split;
    EXPECT_EQ(metas[split].sliding.head, 4u);
    EXPECT_EQ(metas[split].sliding.head_increment, 4u);
  }
  EXPECT_EQ(AdmitAll(&filter, ids), (std::vector<bool>{true, true, true, true}));
  EXPECT_EQ(AdmitAll(&filter, ids), (std::vector<bool>{true, true, true, true}));
}

TEST(SlidingHashFilterTest, IdsWithoutThresholdAreNotCounted) {
  SlotOccurrenceThresholdConfig config;
  config.default_occurrence_threshold = 2;
  config.slot_occurrence_thresholds = {{1, 0}};
  SlidingHashFilter filter(3000, 7, SlotThresholds(config));
  for (std::int64_t i = 0; i < 10; ++i) {
    const std::int64_t slot = i % 2;
    EXPECT_EQ(filter.Admit(slot << 48 | DistinctId(i), 1), slot == 1);
  }
  EXPECT_EQ(filter.Metas()[0].num_elements, 5u);
}

TEST(SlidingHashFilterTest, CountsOfOneCallAreChargedAtOnce) {
  SlidingHashFilter filter(300, 5, Thresholds(3));
  EXPECT_FALSE(filter.Admit(1, 3));  // Seen 0 times before this call.
  EXPECT_TRUE(filter.Admit(1, 1));
  EXPECT_FALSE(filter.Admit(2, 0xFFFFFFFFu));
  EXPECT_TRUE(filter.Admit(2, 1));
}

TEST(SlidingHashFilterTest, CountOfZeroAsksWithoutCharging) {
  SlidingHashFilter filter(300, 5, Thresholds(1));
  EXPECT_FALSE(filter.Admit(1, 0));
  EXPECT_FALSE(filter.Admit(1, 0));
  EXPECT_EQ(filter.Metas()[0].num_elements, 0u);
  EXPECT_FALSE(filter.Admit(1, 1));
  EXPECT_TRUE(filter.Admit(1, 0));
}

TEST(SlidingHashFilterTest, ThresholdsAboveFifteenWorkAsFifteen) {
  for (const std::uint32_t threshold : {15u, 16u, 1000u, 0xFFFFFFFFu}) {
    SlidingHashFilter filter(300, 5, Thresholds(threshold));
    for (int i = 0; i < 15; ++i) EXPECT_FALSE(filter.Admit(1, 1)) << threshold;
    EXPECT_TRUE(filter.Admit(1, 1)) << threshold;
  }
}

TEST(SlidingHashFilterTest, CountsUpToFifteen) {
  SlidingHashFilter filter(300, 5, Thresholds(1));
  for (std::uint32_t i = 0; i < 20; ++i) {
    EXPECT_EQ(filter.Get(1), std::min(i, 15u));
    EXPECT_EQ(filter.Add(1, 1), std::min(i, 15u));
  }
}

TEST(SlidingHashFilterTest, WithoutACellIdsPassAndFailuresAreCounted) {
  // All ids at one position: 16 cells of the head and 16 of the split after it.
  SlidingHashFilter filter(300, 5, Thresholds(5));  // 75 ids and 90 positions per split.
  const auto id = [](std::int64_t i) { return i * 90 << 17; };
  for (std::int64_t i = 1; i <= 32; ++i) EXPECT_FALSE(filter.Admit(id(i), 1)) << i;
  EXPECT_TRUE(filter.Admit(id(33), 1));
  EXPECT_EQ(filter.Get(id(33)), 15u);
  const auto metas = filter.Metas();
  EXPECT_EQ(metas[0].num_elements, 16u);
  EXPECT_EQ(metas[1].num_elements, 16u);
  EXPECT_EQ(metas[0].sliding.failure_count, 1u);
  EXPECT_EQ(metas[0].sliding.head, 0u);
}

TEST(SlidingHashFilterTest, ForgetsIdsThatDoNotComeBack) {
  SlidingHashFilter filter(300, 5, Thresholds(1));  // A head takes 74 ids.
  filter.Add(DistinctId(0), 7);
  std::int64_t next = 1;
  const auto slide = [&] {
    const auto increment = filter.Metas()[0].sliding.head_increment;
    while (filter.Metas()[0].sliding.head_increment == increment) filter.Add(DistinctId(next++), 1);
  };
  for (int i = 0; i < 3; ++i) {
    slide();
    EXPECT_EQ(filter.Get(DistinctId(0)), 7u) << i;
  }
  slide();  // Five splits: the one after the head is cleared, and that is where the count was.
  EXPECT_EQ(filter.Get(DistinctId(0)), 0u);
}

TEST(SlidingHashFilterTest, SmallSizesAreRaised) {
  SlidingHashFilter filter(0, 0, Thresholds(1));
  EXPECT_EQ(filter.split_num(), 5u);
  EXPECT_EQ(filter.Metas()[0].total_size, 75u);  // 300 / 4.
}

TEST(SlidingHashFilterTest, RefusesMoreSplitsThanItHasRoomFor) {
  EXPECT_NO_THROW(SlidingHashFilter(300, 151, Thresholds(1)));
  try {
    SlidingHashFilter(10, 152, Thresholds(1));
    FAIL();
  } catch (const std::invalid_argument& e) {
    EXPECT_STREQ(e.what(),
                 "A filter of capacity 300 has room for at most 151 splits, got split_num 152.");
  }
}

// The specification, written down once more and as plainly as possible.
class Model {
 public:
  Model(std::uint64_t capacity, std::uint64_t num)
      : num_(num),
        split_capacity_(capacity / (num - 1)),
        positions_(static_cast<std::uint64_t>(split_capacity_ * 1.2)),
        cells_(num, std::vector<std::uint64_t>(positions_ + 64, 0)),
        elements_(num, 0) {}

  std::uint64_t Add(std::int64_t id, std::uint64_t n) {
    for (const std::uint64_t forward : {head_, (head_ + 1) % num_}) {
      const std::uint64_t at = Probe(forward, id);
      if (at == kNone) continue;
      std::uint64_t& cell = cells_[forward][at];
      const std::uint64_t old = cell != 0 ? cell % 16 : Backward(id);
      if (cell == 0) ++elements_[forward];
      const bool was_empty = cell == 0;
      cell = Sign(id) * 16 + std::min<std::uint64_t>(old + n, 15);
      if (was_empty && elements_[head_] >= split_capacity_ - 1) {
        head_ = (head_ + 1) % num_;
        head_increment_ += 1;
        const std::uint64_t cleared = (head_ + 1) % num_;
        cells_[cleared].assign(positions_ + 64, 0);
        elements_[cleared] = 0;
      }
      return old;
    }
    ++failures_;
    return 15;
  }

  void ExpectSameAs(const std::vector<HashFilterSplitMeta>& metas) const {
    for (std::size_t split = 0; split < num_; ++split) {
      EXPECT_EQ(metas[split].num_elements, elements_[split]);
      EXPECT_EQ(metas[split].sliding.head, head_);
      EXPECT_EQ(metas[split].sliding.head_increment, head_increment_);
      EXPECT_EQ(metas[split].sliding.failure_count, failures_);
    }
  }
  std::uint64_t head_increment() const { return head_increment_; }
  std::uint64_t failures() const { return failures_; }

 private:
  static constexpr std::uint64_t kNone = ~std::uint64_t{0};

  // (id >> 17 | id << 15) & 0xFFF; the shift to the left leaves nothing in the low 12 bits.
  static std::uint64_t Sign(std::int64_t id) {
    return static_cast<std::uint64_t>(id) / 131072 % 4096;
  }

  std::uint64_t Probe(std::uint64_t split, std::int64_t id) const {
    const std::uint64_t start = static_cast<std::uint64_t>(id) % positions_;
    for (std::uint64_t at = start; at < start + 16; ++at) {
      if (cells_[split][at] == 0 || cells_[split][at] / 16 == Sign(id)) return at;
    }
    return kNone;
  }

  std::uint64_t Backward(std::int64_t id) const {
    std::uint64_t split = head_;
    for (std::uint64_t step = 0; step < std::min(head_increment_, num_ - 2); ++step) {
      split = (split + num_ - 1) % num_;
      const std::uint64_t at = Probe(split, id);
      if (at != kNone && cells_[split][at] != 0) return cells_[split][at] % 16;
    }
    return 0;
  }

  const std::uint64_t num_;
  const std::uint64_t split_capacity_;
  const std::uint64_t positions_;
  std::vector<std::vector<std::uint64_t>> cells_;
  std::vector<std::uint64_t> elements_;
  std::uint64_t head_ = 0;
  std::uint64_t head_increment_ = 0;
  std::uint64_t failures_ = 0;
};

TEST(SlidingHashFilterTest, AgreesWithAModelOnRandomIds) {
  std::uint64_t failures = 0;
  for (const unsigned seed : {1u, 2u, 3u, 4u}) {
    std::mt19937_64 random(seed);
    std::vector<std::int64_t> ids(1500);
    for (auto& id : ids) id = static_cast<std::int64_t>(random());
    // Ids of one position, which soon find no cell.
    for (int i = 0; i < 60; ++i) ids[i] = std::int64_t{240} * i << 17;
    SlidingHashFilter filter(1200, 7, Thresholds(1));  // 200 ids, 240 positions per split.
    Model model(1200, 7);
    for (int step = 0; step < 30'000; ++step) {
      // Squared, so that some ids are frequent and some rare enough to be forgotten.
      const double x = static_cast<double>(random() % 1000) / 1000;
      const std::int64_t id = ids[static_cast<std::size_t>(x * x * 1500)];
      const std::uint32_t n = 1 + random() % 4;
      ASSERT_EQ(filter.Add(id, n), model.Add(id, n)) << "seed " << seed << " step " << step;
      if (step % 5000 == 1234) {  // A save and restore in between changes nothing.
        SlidingHashFilter empty(1200, 7, Thresholds(1));
        Restore(&empty, Save(&filter));
        Restore(&filter, Save(&empty));
      }
    }
    EXPECT_GT(model.head_increment(), 50u);
    failures += model.failures();
    model.ExpectSameAs(filter.Metas());
  }
  EXPECT_GT(failures, 0u);
}

TEST(SlidingHashFilterTest, ThreadsLoseNoOccurrence) {
  constexpr int kThreads = 8;
  constexpr int kIds = 1000;
  constexpr std::uint32_t kThreshold = 13;
  // 499 new ids move the head; an id is forgotten after 97 moves, but comes back sooner.
  SlidingHashFilter filter(99 * 500, 100, Thresholds(kThreshold));
  std::array<std::atomic<std::uint32_t>, kIds> refused{};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(t);
      std::vector<int> order(kIds);
      for (int i = 0; i < kIds; ++i) order[i] = i;
      for (int round = 0; round < 5; ++round) {
        std::shuffle(order.begin(), order.end(), random);
        for (const int i : order) refused[i] += !filter.Admit(DistinctId(i), 1);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  // 40 occurrences of each id, of which exactly the first 13 are refused.
  for (int i = 0; i < kIds; ++i) ASSERT_EQ(refused[i], kThreshold) << i;
  EXPECT_GT(filter.Metas()[0].sliding.head_increment, 2u);
  EXPECT_EQ(filter.Metas()[0].sliding.failure_count, 0u);
}

TEST(SlidingHashFilterTest, SavesAndRestoresWhileThreadsCount) {
  SlidingHashFilter filter(12'000, 7, Thresholds(3));
  SlidingHashFilter copy(12'000, 7, Thresholds(3));
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937_64 random(t);
      while (!stop) {
        const auto id = static_cast<std::int64_t>(random());
        filter.Admit(id, 1);
        copy.Admit(id, 1);
      }
    });
  }
  for (int i = 0; i < 30; ++i) {
    Restore(&copy, Save(&filter));
    if (i % 10 == 0) Restore(&filter, Save(&copy));
  }
  stop = true;
  for (auto& thread : threads) thread.join();
  const auto files = Save(&filter);
  Restore(&copy, files);
  EXPECT_EQ(Save(&copy), files);
}

TEST(SlidingHashFilterTest, HeadWaitsForASnapshotAndThenCatchesUp) {
  SlidingHashFilter filter(300, 5, Thresholds(1));  // A head takes 74 ids.
  {
    const SlidingHashFilter::Snapshot snapshot(&filter);
    for (int i = 0; i < 80; ++i) filter.Add(DistinctId(i), 1);
  }
  EXPECT_EQ(filter.Metas()[0].sliding.head_increment, 0u);
  filter.Add(DistinctId(80), 1);
  EXPECT_EQ(filter.Metas()[0].sliding.head_increment, 1u);
  for (int i = 0; i < 80; ++i) EXPECT_EQ(filter.Get(DistinctId(i)), 1u);
}

TEST(SlidingHashFilterTest, EmptySplitsTakeOneRecordOfCells) {
  SlidingHashFilter filter(600'000, 7, Thresholds(1));  // 120064 cells per split.
  filter.Add(50'005, 1);
  const auto files = Save(&filter);
  EXPECT_EQ(files[0].size(), 3u);  // Metadata, the cells around the id, the last cells.
  HashFilterSplitData data;
  DecodeSplitData(files[0][1], &data);
  EXPECT_EQ(data.offset, 50'000u);
  EXPECT_EQ(data.cells.size(), kCellsPerRecord);
  EXPECT_EQ(data.cells[5], 1u);
  for (std::size_t split = 1; split < 7; ++split) {
    ASSERT_EQ(files[split].size(), 2u);
    DecodeSplitData(files[split][1], &data);
    EXPECT_EQ(data.offset, 120'000u);
    EXPECT_EQ(data.cells, std::vector<std::uint32_t>(64, 0));
  }
}

TEST(SlidingHashFilterTest, ReadsFilesWithAllCells) {
  SlidingHashFilter filter(300, 5, Thresholds(1));  // 90 positions, 154 cells.
  filter.Add(10, 3);
  auto files = Save(&filter);
  // The same cells in two records, as a filter that leaves none out might have cut them.
  HashFilterSplitData data;
  DecodeSplitData(files[0][1], &data);
  ASSERT_EQ(data.cells.size(), 154u);
  const HashFilterSplitData first = {0, {data.cells.begin(), data.cells.begin() + 100}};
  const HashFilterSplitData second = {100, {data.cells.begin() + 100, data.cells.end()}};
  files[0] = {files[0][0], EncodeSplitData(first), EncodeSplitData(second)};
  SlidingHashFilter other(300, 5, Thresholds(1));
  Restore(&other, files);
  EXPECT_EQ(other.Get(10), 3u);
  EXPECT_EQ(other.Metas()[0].num_elements, 1u);
}

TEST(SlidingHashFilterTest, RefusesFilesOfAnotherFilter) {
  SlidingHashFilter live(300, 7, Thresholds(1));
  SlidingHashFilter fewer(300, 5, Thresholds(1));
  SlidingHashFilter larger(600, 7, Thresholds(1));
  EXPECT_THROW(Restore(&live, Save(&larger)), FilterDumpMismatch);
  EXPECT_EQ(ErrorOfRestore(&live, Save(&fewer)),
            "split_num: 7 does't match with : 5 read from hash filter checkpoint file.");
  EXPECT_EQ(ErrorOfRestore(&live, Save(&larger)),
            "total_size: 50 does't match with : 100 read from hash filter checkpoint file.");
}

TEST(SlidingHashFilterTest, RefusesFilesWithAnyOtherDimension) {
  SlidingHashFilter live(300, 5, Thresholds(1));
  const auto good = Save(&live);
  const auto error_with = [&](const auto& change) {
    auto files = good;
    HashFilterSplitMeta meta = DecodeSplitMeta(good[2][0]);
    change(&meta);
    files[2][0] = EncodeSplitMeta(meta);
    const std::string error = ErrorOfRestore(&live, files);
    return error.substr(0, error.find(':'));
  };
  using Meta = HashFilterSplitMeta;
  EXPECT_EQ(error_with([](Meta* m) { ++m->sliding.split_num; }), "split_num");
  EXPECT_EQ(error_with([](Meta* m) { ++m->sliding.max_forward_step; }), "max_forward_step");
  EXPECT_EQ(error_with([](Meta* m) { ++m->sliding.max_backward_step; }), "max_backward_step");
  EXPECT_EQ(error_with([](Meta* m) { ++m->sliding.max_step; }), "max_step");
  EXPECT_EQ(error_with([](Meta* m) { ++m->total_size; }), "total_size");
  EXPECT_EQ(error_with([](Meta* m) { m->fill_rate += 0.25; }), "fill_rate");
}

TEST(SlidingHashFilterTest, RefusesDamagedFilesAndStaysAsItWas) {
  SlidingHashFilter saved(300, 5, Thresholds(1));
  for (int i = 0; i < 100; ++i) saved.Add(DistinctId(i), 2);  // The head has moved once.
  const auto good = Save(&saved);
  HashFilterSplitMeta meta = DecodeSplitMeta(good[1][0]);
  ASSERT_EQ(meta.sliding.head, 1u);

  SlidingHashFilter live(300, 5, Thresholds(1));
  live.Add(DistinctId(7), 9);
  const auto before = Save(&live);
  const auto expect_refused = [&](const Records& damaged, const std::string& message) {
    auto files = good;
    files[1] = damaged;
    EXPECT_THROW(Restore(&live, files), CorruptFilterDump);
    EXPECT_NE(ErrorOfRestore(&live, files).find(message), std::string::npos)
        << ErrorOfRestore(&live, files);
    EXPECT_EQ(Save(&live), before);
  };

  expect_refused({}, "no record of metadata");
  expect_refused({good[1][0]}, "cells end at 0 of 154: the file is truncated");
  expect_refused({"\x0a"}, "not the metadata");
  expect_refused({""}, "not the metadata");
  expect_refused({good[1][1]}, "not the metadata");
  expect_refused({good[1][0], "\x08"}, "not a protobuf message");
  expect_refused({good[1][0], "\x12\x01\x80"}, "packed cells of a record are malformed");
  expect_refused({good[1][0], good[1][1], good[1][1]}, "do not fit behind cell 154 of 154");
  HashFilterSplitData data;
  data.offset = 100;
  data.cells.assign(55, 1);
  expect_refused({good[1][0], EncodeSplitData(data)}, "55 cells at offset 100 do not fit");
  data.offset = static_cast<std::size_t>(-1);
  expect_refused({good[1][0], std::string("\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x10\x01")},
                 "do not fit");
  expect_refused({good[1][0], std::string("\x08\x00\x10\x80\x80\x04", 6)}, "16 bits: 65536");
  meta.sliding.head = 5;
  expect_refused({EncodeSplitMeta(meta), good[1][1]}, "head 5 is not one of 5 splits");
  meta.sliding.head = 2;
  meta.sliding.head_increment = 2;
  expect_refused({EncodeSplitMeta(meta), good[1][1]}, "different saves");
  meta.sliding.head_increment = 1;  // The head alone,
  expect_refused({EncodeSplitMeta(meta), good[1][1]}, "different saves");
  meta.sliding.head = 1;  // and its moves alone.
  meta.sliding.head_increment = 6;
  expect_refused({EncodeSplitMeta(meta), good[1][1]}, "different saves");

  SlidingHashFilter::Restoration incomplete(&live);
  EXPECT_THROW(incomplete.Commit(), std::logic_error);
  Restore(&live, good);
  EXPECT_EQ(Save(&live), good);
}

TEST(SlidingHashFilterTest, DefaultSizeIsCheapUntilUsed) {
  SlidingHashFilter filter(300'000'000, 7, Thresholds(3));
  EXPECT_EQ(filter.Metas()[0].total_size, 50'000'000u);
  EXPECT_FALSE(filter.Admit(1, 3));
  EXPECT_TRUE(filter.Admit(1, 1));
}

TEST(FilterDumpTest, WireForm) {
  EXPECT_EQ(EncodeSplitData({300, {0, 1, 300}}),
            std::string("\x08\xac\x02\x10\x00\x10\x01\x10\xac\x02", 10));
  HashFilterSplitData data;
  // Packed, as a proto3 writer would have it; then one more cell by itself.
  DecodeSplitData(std::string("\x08\x05\x12\x03\x01\xac\x02\x10\x07", 9), &data);
  EXPECT_EQ(data.offset, 5u);
  EXPECT_EQ(data.cells, (std::vector<std::uint32_t>{1, 300, 7}));

  HashFilterSplitMeta meta;
  meta.failure_count = 1;
  meta.total_size = 3;
  meta.num_elements = 2;
  meta.fill_rate = 1.5;
  meta.sliding = {7, 2, 5, 16, 4, 11, 9};
  // 1.5 is 0x3ff8000000000000.
  const std::string bytes(
      "\x08\x01\x10\x03\x18\x02\x21\x00\x00\x00\x00\x00\x00\xf8\x3f"
      "\x2a\x0e\x08\x07\x10\x02\x18\x05\x20\x10\x28\x04\x30\x0b\x38\x09",
      31);
  EXPECT_EQ(EncodeSplitMeta(meta), bytes);
  const HashFilterSplitMeta read = DecodeSplitMeta(bytes);
  EXPECT_EQ(read.failure_count, 1u);
  EXPECT_EQ(read.num_elements, 2u);
  EXPECT_EQ(read.fill_rate, 1.5);
  EXPECT_EQ(read.sliding.head_increment, 11u);
  EXPECT_EQ(read.sliding.failure_count, 9u);
}

}  // namespace
}  // namespace monolith::core
