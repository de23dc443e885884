#include "core/filter/sliding_hash_filter.h"

#include <algorithm>
#include <stdexcept>

namespace monolith::core {
namespace {

// So many neighbouring cells share a stripe; far more than a probe range, so that few ids need two.
constexpr std::size_t kRegionCells = 4096;
static_assert(SlidingHashFilter::kMaxStep <= kRegionCells);

std::size_t StripeOf(std::size_t cell) { return cell / kRegionCells % StripedGate::kStripes; }

}  // namespace

SlidingHashFilter::SlidingHashFilter(std::size_t capacity, std::size_t split_num,
                                     const SlotThresholds& thresholds)
    : split_num_(std::max(split_num, kMinSplits)),
      split_capacity_(std::max(capacity, kMinCapacity) / (split_num_ - 1)),
      thresholds_(thresholds) {
  if (split_capacity_ < 2) {
    capacity = std::max(capacity, kMinCapacity);
    throw std::invalid_argument("A filter of capacity " + std::to_string(capacity) +
                                " has room for at most " + std::to_string(capacity / 2 + 1) +
                                " splits, got split_num " + std::to_string(split_num) + ".");
  }
  splits_ = MakeSplits();
  num_positions_ = splits_.front()->num_positions();
}

SlidingHashFilter::Splits SlidingHashFilter::MakeSplits() const {
  Splits splits(split_num_);
  for (auto& split : splits) split = std::make_unique<Split>(split_capacity_, kFillRate, kMaxStep);
  return splits;
}

bool SlidingHashFilter::Admit(std::int64_t id, std::uint32_t count) {
  return AdmitFrom(thresholds_.threshold(id), id, count);
}

bool SlidingHashFilter::AdmitFrom(std::uint32_t threshold, std::int64_t id, std::uint32_t count) {
  return threshold == 0 || Add(id, count) >= std::min(threshold, Split::kMaxCount);
}

std::uint32_t SlidingHashFilter::Add(std::int64_t id, std::uint32_t n) {
  if (n == 0) return Get(id);
  std::uint32_t old = 0;
  bool head_is_full = false;
  {
    const auto pass = Enter(id);
    std::uint16_t* cell = nullptr;
    Split* split = ForwardSplit(id, &cell);
    if (split == nullptr) {
      failure_count_.fetch_add(1, std::memory_order_relaxed);
      return Split::kMaxCount;
    }
    if (*cell != 0) return Split::Raise(cell, n);
    old = BackwardCount(id);
    split->Occupy(cell, id, old + std::min(n, Split::kMaxCount));
    head_is_full = splits_[head_]->full();
  }
  if (head_is_full) Slide();
  return old;
}

std::uint32_t SlidingHashFilter::Get(std::int64_t id) {
  const auto pass = Enter(id);
  std::uint16_t* cell = nullptr;
  if (ForwardSplit(id, &cell) == nullptr) return Split::kMaxCount;
  return *cell != 0 ? Split::Count(*cell) : BackwardCount(id);
}

StripedGate::Pass SlidingHashFilter::Enter(std::int64_t id) {
  const std::size_t start = static_cast<std::uint64_t>(id) % num_positions_;
  return gate_.Enter(StripeOf(start), StripeOf(start + kMaxStep - 1));
}

SlidingHashFilter::Split* SlidingHashFilter::ForwardSplit(std::int64_t id, std::uint16_t** cell) {
  for (std::size_t step = 0; step < kForwardSteps; ++step) {
    Split* split = splits_[(head_ + step) % split_num_].get();
    *cell = split->Find(id);
    if (*cell != nullptr) return split;
  }
  return nullptr;
}

std::uint32_t SlidingHashFilter::BackwardCount(std::int64_t id) const {
  const std::size_t steps = std::min<std::uint64_t>(head_increment_, split_num_ - kForwardSteps);
  for (std::size_t step = 1; step <= steps; ++step) {
    const Split& split = *splits_[(head_ + split_num_ - step) % split_num_];
    const std::uint16_t* cell = split.Find(id);
    if (cell != nullptr && *cell != 0) return Split::Count(*cell);
  }
  return 0;
}

void SlidingHashFilter::Slide() {
  // Not while a snapshot is written: the head goes on filling, and the next new id tries again.
  const std::unique_lock<std::mutex> maintenance(maintenance_, std::try_to_lock);
  if (!maintenance.owns_lock()) return;
  gate_.Exclusive([this] {
    if (!splits_[head_]->full()) return;  // Another thread was here first.
    head_ = (head_ + 1) % split_num_;
    ++head_increment_;
    splits_[(head_ + 1) % split_num_]->Clear();
  });
}

std::vector<HashFilterSplitMeta> SlidingHashFilter::Metas() {
  const std::lock_guard<std::mutex> maintenance(maintenance_);
  return MetasInMaintenance();
}

std::vector<HashFilterSplitMeta> SlidingHashFilter::MetasInMaintenance() const {
  SlidingHashFilterMeta sliding;
  sliding.split_num = static_cast<std::uint32_t>(split_num_);
  sliding.max_forward_step = kForwardSteps;
  sliding.max_backward_step = static_cast<std::uint32_t>(split_num_ - kForwardSteps);
  sliding.max_step = kMaxStep;
  sliding.head = static_cast<std::uint32_t>(head_);
  sliding.head_increment = static_cast<std::uint32_t>(head_increment_);
  sliding.failure_count = failure_count_.load(std::memory_order_relaxed);
  std::vector<HashFilterSplitMeta> metas;
  for (const auto& split : splits_) {
    metas.push_back({split->failure_count(), split->capacity(), split->num_elements(),
                     split->fill_rate(), sliding});
  }
  return metas;
}

SlidingHashFilter::Snapshot::Snapshot(SlidingHashFilter* filter)
    : filter_(filter), maintenance_(filter->maintenance_), metas_(filter->MetasInMaintenance()) {}

void SlidingHashFilter::Snapshot::Write(std::size_t split,
                                        const std::function<void(std::string_view)>& write) const {
  write(EncodeSplitMeta(metas_.at(split)));
  const Split& source = *filter_->splits_[split];
  const std::size_t num_cells = source.num_cells();
  const std::size_t last_offset = (num_cells - 1) / kCellsPerRecord * kCellsPerRecord;
  HashFilterSplitData data;
  // In a split without ids there is nothing to look for: only its last record is written.
  for (data.offset = source.num_elements() == 0 ? last_offset : 0; data.offset < num_cells;
       data.offset += kCellsPerRecord) {
    const std::size_t end = std::min(data.offset + kCellsPerRecord, num_cells);
    data.cells.clear();
    bool empty = true;
    for (std::size_t begin = data.offset; begin < end;) {
      const std::size_t region_end = std::min((begin / kRegionCells + 1) * kRegionCells, end);
      const auto pass = filter_->gate_.Enter(StripeOf(begin), StripeOf(begin));
      for (; begin < region_end; ++begin) {
        const std::uint16_t cell = source.cells()[begin];
        empty &= cell == 0;
        data.cells.push_back(cell);
      }
    }
    if (!empty || data.offset == last_offset) write(EncodeSplitData(data));
  }
}

SlidingHashFilter::Restoration::Restoration(SlidingHashFilter* filter)
    : filter_(filter),
      live_metas_(filter->Metas()),
      splits_(filter->MakeSplits()),
      read_metas_(filter->split_num_) {}

void SlidingHashFilter::Restoration::Read(std::size_t split,
                                          const std::function<bool(std::string_view*)>& next) {
  std::string_view record;
  if (!next(&record)) throw CorruptFilterDump("There is no record of metadata.");
  const HashFilterSplitMeta meta = DecodeSplitMeta(record);
  CheckSameDimensions(live_metas_.at(split), meta);
  if (meta.sliding.head >= filter_->split_num_) {
    throw CorruptFilterDump("The head " + std::to_string(meta.sliding.head) + " is not one of " +
                            std::to_string(filter_->split_num_) + " splits.");
  }

  Split& target = *splits_[split];
  HashFilterSplitData data;
  std::size_t end = 0;
  while (next(&record)) {
    DecodeSplitData(record, &data);
    if (data.offset < end || data.offset > target.num_cells() ||
        data.cells.size() > target.num_cells() - data.offset) {
      throw CorruptFilterDump(std::to_string(data.cells.size()) + " cells at offset " +
                              std::to_string(data.offset) + " do not fit behind cell " +
                              std::to_string(end) + " of " + std::to_string(target.num_cells()) +
                              ".");
    }
    target.LoadCells(data.offset, data.cells.data(), data.cells.size());
    end = data.offset + data.cells.size();
  }
  if (end != target.num_cells()) {
    throw CorruptFilterDump("The cells end at " + std::to_string(end) + " of " +
                            std::to_string(target.num_cells()) + ": the file is truncated.");
  }
  read_metas_[split] = meta.sliding;
}

void SlidingHashFilter::Restoration::Commit() {
  const SlidingHashFilterMeta& first = read_metas_.front();
  for (std::size_t split = 0; split < read_metas_.size(); ++split) {
    const SlidingHashFilterMeta& meta = read_metas_[split];
    if (meta.split_num == 0) {
      throw std::logic_error("Split " + std::to_string(split) + " was not read.");
    }
    if (meta.head != first.head || meta.head_increment != first.head_increment) {
      throw CorruptFilterDump("The head has moved " + std::to_string(meta.head_increment) +
                              " times in split " + std::to_string(split) + " and " +
                              std::to_string(first.head_increment) +
                              " times in split 0: they are of different saves.");
    }
  }
  const std::lock_guard<std::mutex> maintenance(filter_->maintenance_);
  filter_->gate_.Exclusive([this, &first] {
    filter_->splits_.swap(splits_);
    filter_->head_ = first.head;
    filter_->head_increment_ = first.head_increment;
    filter_->failure_count_.store(first.failure_count, std::memory_order_relaxed);
  });
}

}  // namespace monolith::core
