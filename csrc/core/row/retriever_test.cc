#include "core/row/retriever.h"

#include <gtest/gtest.h>

#include <cmath>
#include <stdexcept>
#include <thread>
#include <vector>

namespace monolith::core {
namespace {

template <typename Config>
std::unique_ptr<Retriever> Make(const Config& member, std::size_t dim) {
  CompressorConfig config;
  config.type = member;
  return MakeRetriever(config, dim);
}

float Forward(const Retriever& retriever, float w) {
  float value = 0.0f;
  retriever.Forward(&w, &value);
  return value;
}

float Backward(const Retriever& retriever, float w, float grad, std::int64_t global_step) {
  float w_grad = 0.0f;
  retriever.Backward(&w, &grad, global_step, &w_grad);
  return w_grad;
}

TEST(MakeRetriever, RawValuesNeedNone) {
  EXPECT_EQ(MakeRetriever(std::nullopt, 1), nullptr);
  EXPECT_EQ(MakeRetriever(CompressorConfig(), 1), nullptr);
  EXPECT_EQ(Make(Fp32Config(), 1), nullptr);
  EXPECT_EQ(Make(Fp16Config(), 1), nullptr);
}

TEST(FakeQuant, ReadsWhatServingWillReadAndPassesGradients) {
  FixedR8Config config;
  config.r = 5.0f;
  const auto retriever = Make(config, 3);
  EXPECT_EQ(retriever->dim(), 3u);
  constexpr float kStep = 5.0f / 128.0f;
  const std::vector<float> w = {1.4f * kStep, -1.6f * kStep, 100.0f};
  std::vector<float> values(3), grads(3);
  retriever->Forward(w.data(), values.data());
  EXPECT_EQ(values, (std::vector<float>{kStep, -2 * kStep, 127 * kStep}));
  const std::vector<float> grad = {1.0f, 2.0f, 3.0f};
  retriever->Backward(w.data(), grad.data(), 0, grads.data());
  EXPECT_EQ(grads, grad);
}

TEST(HashNet, GrowsSteeperWithTheSteps) {
  OneBitConfig config;
  config.step_size = 1000;
  const auto retriever = Make(config, 1);
  EXPECT_NEAR(Forward(*retriever, 1.0f), 0.07615941f, 1e-7);
  EXPECT_NEAR(Forward(*retriever, 2.0f), 0.09640275f, 1e-7);
  EXPECT_NEAR(Backward(*retriever, 2.0f, 1.0f, 1), 0.00706508f, 1e-7);
  EXPECT_NEAR(Forward(*retriever, 2.0f), 0.09640275f, 1e-7);  // Step 1 changes no scale.
  // scale = sqrt(1 + 0.005 * 1000) = 2.44948974, used by this very step; 1 - tanh^2 loses digits.
  EXPECT_NEAR(Backward(*retriever, 2.0f, 100.0f, 1000), 0.005442613f, 1e-5);
  EXPECT_NEAR(Forward(*retriever, 2.0f), 0.09998888f, 1e-7);
  EXPECT_NEAR(Forward(*retriever, 0.1f), 0.1 * std::tanh(0.244948974), 1e-7);
  (void)Backward(*retriever, 2.0f, 100.0f, 1001);
  EXPECT_NEAR(Forward(*retriever, 2.0f), 0.09998888f, 1e-7);
}

TEST(HashNet, TheScaleHasALimit) {
  OneBitConfig config;
  config.step_size = 1;
  config.init_scale = 2.0f;
  config.max_scale = 3.0f;
  const auto retriever = Make(config, 1);
  EXPECT_NEAR(Forward(*retriever, 0.1f), 0.1 * std::tanh(0.2), 1e-7);
  (void)Backward(*retriever, 0.0f, 1.0f, 1'000'000);
  EXPECT_NEAR(Forward(*retriever, 0.1f), 0.1 * std::tanh(0.3), 1e-7);
}

TEST(HashNet, NegativeStepsChangeNoScale) {
  OneBitConfig config;
  config.step_size = 10;
  const auto retriever = Make(config, 1);
  // A multiple of step_size: the scale would be the root of 1 - 0.005 * 1000, which is no number.
  const float slope = Backward(*retriever, 0.5f, 1.0f, -1000);
  EXPECT_NEAR(slope, 0.1 * (1.0 - std::tanh(0.5) * std::tanh(0.5)), 1e-7);
  (void)Backward(*retriever, 0.5f, 1.0f, -10);  // And here smaller than 1.
  EXPECT_NEAR(Forward(*retriever, 0.5f), 0.1 * std::tanh(0.5), 1e-7);
}

TEST(HashNet, LeavesTheCallersGradientAlone) {
  const auto retriever = Make(OneBitConfig(), 2);
  const std::vector<float> w = {0.5f, -0.5f};
  const std::vector<float> grad = {1.0f, 2.0f};
  std::vector<float> w_grad(2);
  retriever->Backward(w.data(), grad.data(), 0, w_grad.data());
  EXPECT_EQ(grad, (std::vector<float>{1.0f, 2.0f}));
  const double slope = 0.1 * (1.0 - std::tanh(0.5) * std::tanh(0.5));
  EXPECT_NEAR(w_grad[0], slope, 1e-7);
  EXPECT_NEAR(w_grad[1], 2.0 * slope, 1e-7);
}

// For the thread sanitizer: rows of one segment are read and updated at the same time.
TEST(HashNet, ManyThreads) {
  OneBitConfig config;
  config.step_size = 2;
  const auto retriever = Make(config, 1);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (std::int64_t step = 0; step < 1000; ++step) {
        (void)Backward(*retriever, 0.5f, 1.0f, step);
        const float value = Forward(*retriever, 0.5f);
        ASSERT_TRUE(value > 0.0f && value <= 0.1f);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  (void)Backward(*retriever, 0.5f, 1.0f, 998);
  EXPECT_NEAR(Forward(*retriever, 0.5f), 0.1 * std::tanh(0.5 * std::sqrt(1 + 0.005 * 998)), 1e-6);
}

TEST(MakeRetriever, RefusesSettingsOutOfRange) {
  OneBitConfig one_bit;
  one_bit.step_size = 0;
  EXPECT_THROW((void)Make(one_bit, 1), std::invalid_argument);
  FixedR8Config fixed;
  fixed.r = -1.0f;
  EXPECT_THROW((void)Make(fixed, 1), std::invalid_argument);
}

}  // namespace
}  // namespace monolith::core
