#include "core/row/compact_accessor.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "core/testing/optimizers.h"
#include "core/testing/tables.h"

namespace monolith::core {
namespace {

using testing::AllOptimizers;
using testing::NamedOptimizer;
using testing::TrainingSegment;
using testing::Wrap;
using Floats = std::vector<float>;
using Storage = EntryConfig::Storage;

EntryConfig Entry(Storage storage, std::vector<SegmentConfig> segments) {
  EntryConfig config;
  config.segments = std::move(segments);
  config.storage = storage;
  return config;
}

class Row {
 public:
  explicit Row(const EntryConfig& config) : accessor_(MakeEntryAccessor(config)) {
    memory_.assign(accessor_->row_bytes() + 1, kGuard);
    accessor_->Init(memory_.data());
  }
  ~Row() { EXPECT_EQ(memory_.back(), kGuard); }

  const EntryAccessor& accessor() const { return *accessor_; }
  Floats Read() const {
    Floats values(accessor_->dim());
    accessor_->Read(memory_.data(), values.data());
    return values;
  }
  void Assign(const Floats& values) { accessor_->Assign(values.data(), memory_.data()); }
  void AssignAdd(const Floats& values) { accessor_->AssignAdd(values.data(), memory_.data()); }
  void Optimize(const Floats& grad, const Floats& rates, std::int64_t global_step = 0) {
    std::byte* const row = memory_.data();
    const float* const row_grad = grad.data();
    accessor_->Optimize(1, &row, &row_grad, rates.data(), global_step);
  }
  std::string Dump() const {
    std::string record;
    accessor_->AppendDump(memory_.data(), true, 7, 99, &record);
    return record;
  }
  void Restore(const std::string& record) {
    accessor_->Restore(testing::ParseRecord(record), memory_.data());
  }
  void RestoreValues(const std::string& record) {
    accessor_->RestoreValues(testing::ParseRecord(record), memory_.data());
  }
  const std::vector<std::byte>& bytes() const { return memory_; }

 private:
  static constexpr std::byte kGuard{0xA5};

  std::unique_ptr<EntryAccessor> accessor_;
  std::vector<std::byte> memory_;
};

class CompactRows : public ::testing::TestWithParam<Storage> {};

INSTANTIATE_TEST_SUITE_P(Storages, CompactRows,
                         ::testing::Values(Storage::kFloat16, Storage::kInt8));

TEST(CompactRowBytes, AreValuesThenStates) {
  const auto bytes = [](Storage storage, const OptimizerConfig& optimizer, std::size_t dim) {
    return MakeEntryAccessor(Entry(storage, {TrainingSegment(optimizer, dim)}))->row_bytes();
  };
  // Adagrad keeps a float for each value, sgd nothing.
  EXPECT_EQ(bytes(Storage::kFloat32, Wrap(AdagradConfig()), 16), 64u + 64u);
  EXPECT_EQ(bytes(Storage::kFloat16, Wrap(AdagradConfig()), 16), 32u + 64u);
  EXPECT_EQ(bytes(Storage::kInt8, Wrap(AdagradConfig()), 16), 20u + 64u);  // 17, rounded up.
  EXPECT_EQ(bytes(Storage::kInt8, Wrap(SgdConfig()), 15), 16u);
  EXPECT_EQ(bytes(Storage::kFloat16, Wrap(SgdConfig()), 3), 8u);
}

TEST_P(CompactRows, SegmentsHaveStepsOfTheirOwn) {
  Row row(Entry(GetParam(), {TrainingSegment(Wrap(SgdConfig()), 2),
                             TrainingSegment(Wrap(AdagradConfig()), 3)}));
  const Floats values = {1024.0f, 512.0f, 0.0009765625f, 0.001953125f, 0.0f};
  row.Assign(values);
  EXPECT_EQ(row.Read(), values);
  // sgd: 1024 - 1 * 512; adagrad: 0 - 1 * 3 / sqrt(0.1 + 9), which is between the two roundings.
  row.Optimize({512.0f, 0.0f, 0.0f, 0.0f, 3.0f}, {1.0f, 1.0f});
  const Floats stepped = row.Read();
  EXPECT_EQ(stepped[0], 512.0f);
  EXPECT_EQ(stepped[1], 512.0f);
  EXPECT_NEAR(stepped[4], -3.0f / std::sqrt(9.1f), 1.0f / 64);
}

TEST_P(CompactRows, SmallStepsAddUp) {
  // Each is a hundredth of what can be stored beside 64: 2000 of them make 20 +- some.
  const float gap = GetParam() == Storage::kInt8 ? 1.0f : 64.0f * 0x1p-10f;
  Row row(Entry(GetParam(), {TrainingSegment(Wrap(SgdConfig()), 2)}));
  row.Assign({64.0f, 0.0f});
  for (int i = 0; i < 1000; ++i) row.Optimize({-gap / 100, 0.0f}, {1.0f});
  for (int i = 0; i < 1000; ++i) row.AssignAdd({gap / 100, 0.0f});
  // A rounding's variance is 0.01 * 0.99 of a squared gap: 2000 make a deviation of 4.4 gaps.
  EXPECT_NEAR(row.Read()[0], 64.0f + 20 * gap, 5 * 4.45f * gap);
  EXPECT_NE(row.Read()[0], 64.0f);
  EXPECT_EQ(row.Read()[1], 0.0f);
}

TEST_P(CompactRows, DumpsRestoreTheSameBytesForEveryOptimizer) {
  for (const NamedOptimizer& optimizer : AllOptimizers()) {
    SCOPED_TRACE(optimizer.name);
    const std::size_t dim = optimizer.dim;
    const EntryConfig config = Entry(GetParam(), {TrainingSegment(optimizer.config, dim)});
    Row row(config);
    row.Assign(Floats(dim, 0.3f));
    for (int step = 1; step < 4; ++step) row.Optimize(Floats(dim, 0.7f), {0.1f}, step);
    Row restored(config);
    restored.Restore(row.Dump());
    EXPECT_EQ(restored.bytes(), row.bytes());
    EXPECT_EQ(restored.Dump(), row.Dump());
  }
}

TEST_P(CompactRows, DumpsRestoreIntoFloatsAndBack) {
  const auto config = [](Storage storage) {
    return Entry(storage, {TrainingSegment(Wrap(AdagradConfig()), 4)});
  };
  Row compact(config(GetParam())), wide(config(Storage::kFloat32));
  compact.Assign({0.3f, -0.7f, 1e-3f, 0.0f});
  compact.Optimize({1.0f, 2.0f, 3.0f, 4.0f}, {0.1f});
  wide.Restore(compact.Dump());
  EXPECT_EQ(wide.Read(), compact.Read());
  EXPECT_EQ(wide.Dump(), compact.Dump());
  Row again(config(GetParam()));
  again.Restore(wide.Dump());
  EXPECT_EQ(again.bytes(), compact.bytes());
  // What a float holds and the compact form does not is rounded to the nearest.
  wide.Assign({1.0f, 0.1f, 0.0f, -0.1f});
  again.RestoreValues(wide.Dump());
  // 127 steps of 1/64 reach 1, and 0.1 is 6.4 of them; a float16 around 0.1 counts in 2^-14.
  const float tenth =
      GetParam() == Storage::kInt8 ? 6.0f / 64 : std::round(0.1f * 0x1p14f) * 0x1p-14f;
  EXPECT_EQ(again.Read(), (Floats{1.0f, tenth, 0.0f, -tenth}));
}

TEST_P(CompactRows, RefuseDumpsOfAnotherFormAndStepsWithoutANumber) {
  Row row(Entry(GetParam(), {TrainingSegment(Wrap(AdagradConfig()), 4)}));
  const Row narrow(Entry(GetParam(), {TrainingSegment(Wrap(AdagradConfig()), 3)}));
  const Row other(Entry(GetParam(), {TrainingSegment(Wrap(SgdConfig()), 4)}));
  EXPECT_THROW(row.Restore(narrow.Dump()), std::invalid_argument);
  EXPECT_THROW(row.Restore(other.Dump()), std::invalid_argument);
  row.RestoreValues(other.Dump());
}

TEST_P(CompactRows, AreReadAsServingWillReadThem) {
  FixedR8Config fixed;
  fixed.r = 1.0f;
  SegmentConfig segment = TrainingSegment(Wrap(SgdConfig()), 2);
  segment.comp_config.emplace().type = fixed;
  Row row(Entry(GetParam(), {segment, TrainingSegment(Wrap(SgdConfig()), 1)}));
  row.Assign({0.5f, 0.25f + 1.0f / 512, 3.0f});
  EXPECT_EQ(row.Read(), (Floats{0.5f, 0.25f, 3.0f}));  // Steps of 1/128, to the nearest.
  row.Optimize({0.25f, 0.0f, 1.0f}, {1.0f, 1.0f});
  EXPECT_EQ(row.Read(), (Floats{0.25f, 0.25f, 2.0f}));
}

TEST(CompactRowConfig, UnknownStorageIsRefused) {
  EXPECT_THROW((void)MakeEntryAccessor(
                   Entry(static_cast<Storage>(3), {TrainingSegment(Wrap(SgdConfig()), 1)})),
               std::invalid_argument);
}

}  // namespace
}  // namespace monolith::core
