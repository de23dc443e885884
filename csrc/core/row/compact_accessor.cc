#include "core/row/compact_accessor.h"

#include <cstring>
#include <utility>

#include "core/row/compact_values.h"
#include "core/system/scratch_floats.h"

namespace monolith::core {
namespace {

__attribute__((noinline)) RoundingRandom& RandomOfThisThread() {
  thread_local RoundingRandom random;
  return random;
}

// The compact values of one segment, and where they begin.
struct Place {
  CompactValues values;
  std::size_t offset;
};

std::vector<Place> PlaceAll(const std::vector<Segment>& segments, EntryConfig::Storage storage) {
  std::vector<Place> places;
  std::size_t offset = 0;
  for (const Segment& segment : segments) {
    places.push_back({CompactValues(storage, segment.dim), offset});
    offset += places.back().values.bytes();
  }
  return places;
}

std::size_t EndOf(const std::vector<Place>& places) {
  return places.back().offset + places.back().values.bytes();
}

// States are 4-byte aligned.
std::size_t RoundUp(std::size_t bytes) { return (bytes + 3) / 4 * 4; }

class CompactAccessor final : public EntryAccessor {
 public:
  CompactAccessor(std::vector<Segment> segments, std::vector<Place> places)
      : places_(std::move(places)),
        segments_(std::move(segments), RoundUp(EndOf(places_))),
        is_read_as_it_is_(segments_.are_read_as_they_are()) {}

  [[nodiscard]] std::size_t row_bytes() const override { return segments_.row_bytes(); }
  [[nodiscard]] std::size_t value_bytes() const override { return EndOf(places_); }
  [[nodiscard]] std::size_t dim() const override { return segments_.dim(); }
  [[nodiscard]] std::size_t num_segments() const override { return segments_.size(); }
  [[nodiscard]] bool values_are_raw() const override { return false; }
  [[nodiscard]] std::string DebugString() const override { return segments_.DebugString(); }

  void Init(std::byte* row) const override {
    ScratchFloats values(dim());
    for (const Segment& segment : segments_) {
      segment.initializer->Initialize(values.data() + segment.value_offset);
    }
    std::memset(row, 0, RoundUp(value_bytes()));  // For the padding.
    Assign(values.data(), row);
    segments_.InitStates(row);
  }

  void Read(const std::byte* row, float* values) const override {
    if (is_read_as_it_is_) {
      ReadWeights(row, values);
    } else {
      ReadThroughRetrievers(row, values);
    }
  }

  void Assign(const float* values, std::byte* row) const override {
    for (std::size_t s = 0; s < places_.size(); ++s) {
      places_[s].values.Encode(values + segments_[s].value_offset, row + places_[s].offset);
    }
  }

  void AssignAdd(const float* values, std::byte* row) const override {
    RoundingRandom& random = RandomOfThisThread();
    ScratchFloats sums(dim());
    ReadWeights(row, sums.data());
    AddFloats(dim(), values, sums.data());
    for (std::size_t s = 0; s < places_.size(); ++s) {
      places_[s].values.EncodeAtRandom(sums.data() + segments_[s].value_offset, random.Next(),
                                       row + places_[s].offset);
    }
  }

  void Optimize(std::size_t n, std::byte* const* rows, const float* const* grads,
                const float* learning_rates, std::int64_t global_step) const override {
    RoundingRandom& random = RandomOfThisThread();
    ScratchFloats w(dim()), w_grad(is_read_as_it_is_ ? 0 : dim());
    for (std::size_t s = 0; s < segments_.size(); ++s) {
      const Segment& segment = segments_[s];
      const Place& place = places_[s];
      for (std::size_t i = 0; i < n; ++i) {
        std::byte* compact = rows[i] + place.offset;
        const float* grad = grads[i] + segment.value_offset;
        place.values.Decode(compact, w.data());
        if (segment.retriever != nullptr) {
          segment.retriever->Backward(w.data(), grad, global_step, w_grad.data());
          grad = w_grad.data();
        }
        segment.optimizer->Step(w.data(), rows[i] + segment.state_offset, grad, learning_rates[s],
                                global_step);
        place.values.EncodeAtRandom(w.data(), random.Next(), compact);
      }
    }
  }

  void AppendDump(const std::byte* row, bool with_id, std::int64_t id,
                  std::uint32_t last_update_sec, std::string* record) const override {
    ScratchFloats weights(dim());
    ReadWeights(row, weights.data());
    segments_.AppendDump(weights.data(), row, with_id, id, last_update_sec, record);
  }

  void Restore(const EntryDumpView& dump, std::byte* row) const override {
    RestoreWeights(dump, row);
    segments_.RestoreStates(dump, row);
  }

  void RestoreValues(const EntryDumpView& dump, std::byte* row) const override {
    RestoreWeights(dump, row);
    segments_.InitStates(row);
  }

 private:
  void ReadWeights(const std::byte* row, float* weights) const {
    for (std::size_t s = 0; s < places_.size(); ++s) {
      places_[s].values.Decode(row + places_[s].offset, weights + segments_[s].value_offset);
    }
  }

  // Apart from Read, to keep the scratch buffer off its stack.
  __attribute__((noinline)) void ReadThroughRetrievers(const std::byte* row, float* values) const {
    ScratchFloats weights(dim());
    ReadWeights(row, weights.data());
    for (const Segment& segment : segments_) {
      const float* from = weights.data() + segment.value_offset;
      float* to = values + segment.value_offset;
      if (segment.retriever == nullptr) {
        std::memcpy(to, from, segment.dim * sizeof(float));
      } else {
        segment.retriever->Forward(from, to);
      }
    }
  }

  void RestoreWeights(const EntryDumpView& dump, std::byte* row) const {
    RequireDim(dump, dim());
    ScratchFloats weights(dim());
    dump.num.CopyTo(weights.data());
    std::memset(row, 0, RoundUp(value_bytes()));  // For the padding.
    Assign(weights.data(), row);
  }

  const std::vector<Place> places_;
  const Segments segments_;
  const bool is_read_as_it_is_;
};

}  // namespace

std::unique_ptr<EntryAccessor> MakeCompactAccessor(std::vector<Segment> segments,
                                                   EntryConfig::Storage storage) {
  std::vector<Place> places = PlaceAll(segments, storage);
  return std::make_unique<CompactAccessor>(std::move(segments), std::move(places));
}

}  // namespace monolith::core
