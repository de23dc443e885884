// Admits an id once it was seen often enough, and forgets ids that were not seen for long.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "core/filter/admission_filter.h"
#include "core/filter/filter_dump.h"
#include "core/filter/hash_filter.h"
#include "core/system/striped_gate.h"
#include "core/table/table_config.h"

namespace monolith::core {

// A ring of HashFilters ("splits"). New counts go to the head, or to the one after it where the
// head has no cell left for the id. When the head is full the next split becomes the head and the
// one behind that is cleared for its turn, so the filter never fills up: an id that comes back is
// found in an older split and its count moves to the head; one that does not is forgotten after
// the head has come round.
//
// Thread-safe, and no occurrence is lost or counted twice; a full head may only take a few more ids
// before it moves than it would with one thread. All splits put an id at the same position, so a
// pass for the stripes around that position guards its cells in all of them; threads with ids at
// other positions are not in the way. Only moving the head and putting a restored state in place
// run alone.
class SlidingHashFilter final : public SharedFilter {
 public:
  using Split = HashFilter<std::uint16_t>;

  static constexpr std::size_t kMinCapacity = 300;
  static constexpr std::size_t kMinSplits = 5;
  static constexpr std::size_t kForwardSteps = 2;
  static constexpr std::size_t kMaxStep = 16;
  static constexpr double kFillRate = 1.2;

  // Holds about `capacity` ids, at least kMinCapacity, in `split_num` splits, at least kMinSplits;
  // one split is always being emptied. Throws std::invalid_argument if that leaves a split room for
  // fewer than 2 ids, std::bad_alloc if the splits are too big.
  SlidingHashFilter(std::size_t capacity, std::size_t split_num, const SlotThresholds& thresholds);

  // True from the (threshold + 1)-th occurrence of the id on. Ids with threshold 0 are admitted
  // without being counted. Counts end at 15, and so do thresholds: a greater one works as 15.
  bool Admit(std::int64_t id, std::uint32_t count) override;
  bool AdmitFrom(std::uint32_t threshold, std::int64_t id, std::uint32_t count) override;
  [[nodiscard]] std::uint32_t max_threshold() const override { return Split::kMaxCount; }

  // Adds `n` occurrences and returns the count before, at most 15; 15 also when there is no cell
  // for the id, so that an overfull filter lets ids pass rather than shut them out.
  std::uint32_t Add(std::int64_t id, std::uint32_t n);
  [[nodiscard]] std::uint32_t Get(std::int64_t id);

  [[nodiscard]] std::size_t split_num() const { return split_num_; }
  // What the files of the splits begin with at this moment.
  [[nodiscard]] std::vector<HashFilterSplitMeta> Metas();

  class Snapshot;
  class Restoration;

 private:
  using Splits = std::vector<std::unique_ptr<Split>>;

  [[nodiscard]] Splits MakeSplits() const;
  [[nodiscard]] StripedGate::Pass Enter(std::int64_t id);
  // The caller holds the pass of the id, or runs alone.
  [[nodiscard]] Split* ForwardSplit(std::int64_t id, std::uint16_t** cell);
  [[nodiscard]] std::uint32_t BackwardCount(std::int64_t id) const;
  void Slide();
  // The caller holds `maintenance_`.
  [[nodiscard]] std::vector<HashFilterSplitMeta> MetasInMaintenance() const;

  const std::size_t split_num_;
  const std::size_t split_capacity_;
  const SlotThresholds thresholds_;

  // Taken before the gate by whoever moves the head, saves, or puts a restored state in place.
  std::mutex maintenance_;
  StripedGate gate_;
  std::size_t num_positions_ = 0;  // Of every split; set by the constructor.
  // Read with a pass or in maintenance; changed in maintenance and alone.
  Splits splits_;
  std::size_t head_ = 0;
  std::uint64_t head_increment_ = 0;  // How often the head has moved.
  std::atomic<std::uint64_t> failure_count_{0};
};

// Writes the filter's state while others go on using it. The head stays where it is as long as the
// snapshot lives, so the files fit together; what is counted meanwhile may or may not be in them.
// Made and destroyed by one thread; others may write splits meanwhile.
class SlidingHashFilter::Snapshot {
 public:
  explicit Snapshot(SlidingHashFilter* filter);

  // Calls `write` with the records of one split. What `write` throws passes through.
  void Write(std::size_t split, const std::function<void(std::string_view)>& write) const;

 private:
  SlidingHashFilter* const filter_;
  const std::unique_lock<std::mutex> maintenance_;
  const std::vector<HashFilterSplitMeta> metas_;
};

// Reads a saved state beside the live one, and puts it in place when all of it is there. Until
// Commit, the filter is not touched. Several threads may read different splits.
class SlidingHashFilter::Restoration {
 public:
  explicit Restoration(SlidingHashFilter* filter);

  // Reads the records of one split: `next` gives the next one, valid until it is called again, or
  // false at the end. Throws FilterDumpMismatch or CorruptFilterDump; what `next` throws passes
  // through.
  void Read(std::size_t split, const std::function<bool(std::string_view*)>& next);

  // Called once, when all splits are read. Throws CorruptFilterDump if they are of different saves.
  void Commit();

 private:
  SlidingHashFilter* const filter_;
  const std::vector<HashFilterSplitMeta> live_metas_;
  Splits splits_;
  std::vector<SlidingHashFilterMeta> read_metas_;  // split_num of 0: not read yet.
};

}  // namespace monolith::core
