#include "core/optimizer/optimizer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/testing/optimizers.h"

namespace monolith::core {
namespace {

using testing::AllOptimizers;
using testing::NamedOptimizer;
using testing::Wrap;
using Row = std::vector<float>;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

template <typename Function>
std::string ErrorOf(Function&& function) {
  try {
    function();
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "no error";
}

// One row under one optimizer, starting at 0.
class Trainer {
 public:
  Trainer(const OptimizerConfig& config, std::size_t dim)
      : optimizer_(MakeOptimizer(config, dim)),
        w_(dim, 0.0f),
        // One float more than needed and started there: only 4-byte aligned, as in a row of odd
        // dim.
        memory_(optimizer_->state_bytes() / sizeof(float) + 1, kNaN) {
    optimizer_->InitState(state());
  }

  const Row& Step(const Row& grad, float learning_rate, std::int64_t global_step = 0) {
    const Row before = grad;
    optimizer_->Step(w_.data(), state(), grad.data(), learning_rate, global_step);
    EXPECT_EQ(grad, before);
    return w_;
  }

  std::byte* state() { return reinterpret_cast<std::byte*>(memory_.data() + 1); }
  // The `index`-th float of the state.
  [[nodiscard]] float state_float(std::size_t index) const { return memory_[index + 1]; }
  Row& w() { return w_; }
  const Optimizer& optimizer() const { return *optimizer_; }

 private:
  std::unique_ptr<Optimizer> optimizer_;
  Row w_;
  Row memory_;
};

void ExpectNear(const Row& actual, const Row& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i) EXPECT_NEAR(actual[i], expected[i], 1e-6) << i;
}

TEST(Sgd, SubtractsTheGradient) {
  Trainer trainer(Wrap(SgdConfig()), 1);
  ExpectNear(trainer.Step({1.0f}, 0.1f), {-0.1f});
  EXPECT_EQ(trainer.optimizer().state_bytes(), 0u);
}

TEST(Adagrad, DividesByTheAccumulatedNorm) {
  AdagradConfig config;
  config.initial_accumulator_value = 1.0f;
  Trainer trainer(Wrap(config), 2);
  ExpectNear(trainer.Step({1.0f, 2.0f}, 0.1f), {-0.07071067f, -0.08944272f});
  EXPECT_EQ(trainer.state_float(0), 2.0f);
  EXPECT_EQ(trainer.state_float(1), 5.0f);
}

TEST(Adagrad, WeightDecayGoesThroughTheStep) {
  AdagradConfig config;
  config.initial_accumulator_value = 1.0f;
  config.weight_decay_factor = 0.1f;
  Trainer trainer(Wrap(config), 2);
  ExpectNear(trainer.Step({1.0f, 2.0f}, 0.1f), {-0.07071067f, -0.08944272f});
  ExpectNear(trainer.Step({1.0f, 2.0f}, 0.1f), {-0.128173f, -0.155943f});
}

TEST(Adagrad, WeightDecayAppliesToWideRowsAsWell) {
  AdagradConfig config;
  config.initial_accumulator_value = 1.0f;
  config.weight_decay_factor = 0.1f;
  Trainer trainer(Wrap(config), 16);
  trainer.Step(Row(16, 1.0f), 0.1f);
  ExpectNear(trainer.Step(Row(16, 1.0f), 0.1f), Row(16, -0.128173f));
}

TEST(Adagrad, ZeroGradientOnAnEmptyAccumulatorChangesNothing) {
  AdagradConfig config;
  config.initial_accumulator_value = 0.0f;
  Trainer trainer(Wrap(config), 2);
  trainer.w() = {0.5f, 0.5f};
  // The second is so small that its square is 0.
  EXPECT_EQ(trainer.Step({0.0f, 1e-30f}, 0.1f), (Row{0.5f, 0.5f}));
}

TEST(DynamicWdAdagrad, DecoupledDecayUsesTheOldWeight) {
  DynamicWdAdagradConfig config;
  config.initial_accumulator_value = 1.0f;
  config.weight_decay_factor = 0.1f;
  config.decouple_weight_decay = true;
  Trainer trainer(Wrap(config), 2);
  ExpectNear(trainer.Step({1.0f, 2.0f}, 0.1f), {-0.07071068f, -0.08944272f});
  ExpectNear(trainer.Step({1.0f, 2.0f}, 0.1f), {-0.1277386f, -0.15521496f});
}

TEST(DynamicWdAdagrad, CoupledDecayIsAdagrads) {
  AdagradConfig plain;
  plain.weight_decay_factor = 0.1f;
  DynamicWdAdagradConfig config;
  config.weight_decay_factor = 0.1f;
  Trainer expected(Wrap(plain), 3);
  Trainer trainer(Wrap(config), 3);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(trainer.Step({1.0f, -2.0f, 0.5f}, 0.1f), expected.Step({1.0f, -2.0f, 0.5f}, 0.1f));
  }
}

TEST(DynamicWdAdagrad, PythonsDefaultsAreAcceptedAndMeanPlainDecoupledDecay) {
  DynamicWdAdagradConfig plain;
  plain.weight_decay_factor = 0.1f;
  plain.decouple_weight_decay = true;
  DynamicWdAdagradConfig config = plain;
  config.enable_dynamic_wd = true;
  config.flip_direction = true;
  Trainer expected(Wrap(plain), 2);
  Trainer trainer(Wrap(config), 2);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(trainer.Step({1.0f, 2.0f}, 0.1f), expected.Step({1.0f, 2.0f}, 0.1f));
  }
}

TEST(DynamicWdAdagrad, RemembersTheLastStep) {
  Trainer trainer(Wrap(DynamicWdAdagradConfig()), 1);
  trainer.Step({1.0f}, 0.1f, 5'000'000'000);
  std::int64_t last_step = 0;
  std::memcpy(&last_step, trainer.state() + sizeof(float), sizeof(last_step));
  EXPECT_EQ(last_step, 5'000'000'000);
}

TEST(Ftrl, FollowsTheRegularizedLeader) {
  Trainer trainer(Wrap(FtrlConfig()), 2);
  ExpectNear(trainer.Step({10.0f, 1.0f}, 0.01f), {-0.009995f, -0.00953463f});
  ExpectNear(trainer.Step({10.0f, 1.0f}, 0.01f), {-0.0170643f, -0.0164353f});
}

TEST(Ftrl, L1ShrinksBothSignsAlike) {
  FtrlConfig config;
  config.l1_regularization_strength = 1.0f;
  config.l2_regularization_strength = 1.0f;
  config.beta = 1.0f;
  Trainer trainer(Wrap(config), 2);
  ExpectNear(trainer.Step({10.0f, -10.0f}, 0.01f), {-0.00817068f, 0.00817068f});
  ExpectNear(trainer.Step({10.0f, -10.0f}, 0.01f), {-0.01476887f, 0.01476887f});
}

TEST(Ftrl, SmallSumsStayAtZero) {
  FtrlConfig config;
  config.l1_regularization_strength = 10.0f;
  Trainer trainer(Wrap(config), 2);
  trainer.w() = {0.0f, 0.0f};
  EXPECT_EQ(trainer.Step({10.0f, -10.0f}, 0.01f), (Row{0.0f, 0.0f}));  // |zero| == l1.
}

TEST(Ftrl, LearningRateZeroChangesNothing) {
  for (const OptimizerConfig& config : {Wrap(FtrlConfig()), Wrap(GroupFtrlConfig())}) {
    Trainer trainer(config, 1);
    trainer.w() = {0.5f};
    const float norm = trainer.state_float(0);
    EXPECT_EQ(trainer.Step({1.0f}, 0.0f), Row{0.5f});
    EXPECT_EQ(trainer.state_float(0), norm);
    EXPECT_EQ(trainer.state_float(1), 0.0f);
  }
}

TEST(Ftrl, ADenominatorOfZeroGivesZero) {
  FtrlConfig config;
  config.initial_accumulator_value = 0.0f;
  config.beta = 0.0f;
  config.l1_regularization_strength = 0.0f;
  config.l2_regularization_strength = 0.0f;
  // The gradient's square is 0 in float, the gradient is not.
  EXPECT_EQ(Trainer(Wrap(config), 2).Step({1e-30f, -1e-30f}, 0.1f), (Row{0.0f, 0.0f}));
}

TEST(GroupFtrl, ADenominatorOfZeroGivesZero) {
  GroupFtrlConfig config;
  config.initial_accumulator_value = 0.0f;
  config.beta = 0.0f;
  config.l1_regularization_strength = 0.0f;
  config.l2_regularization_strength = 0.0f;
  const Row w = Trainer(Wrap(config), 2).Step({1.0f, 1e-30f}, 0.1f);
  EXPECT_NEAR(w[0], -0.1f, 1e-6);  // -0.1 * 1 / sqrt(1)
  EXPECT_EQ(w[1], 0.0f);
}

TEST(GroupFtrl, ShrinksTheWholeRow) {
  GroupFtrlConfig config;
  config.l1_regularization_strength = 1.0f;
  Trainer trainer(Wrap(config), 2);
  ExpectNear(trainer.Step({10.0f, 1.0f}, 0.01f), {-0.00818633f, -0.00450248f});
  ExpectNear(trainer.Step({10.0f, 1.0f}, 0.01f), {-0.01479001f, -0.00867126f});
}

TEST(GroupFtrl, ShortRowsBecomeZero) {
  GroupFtrlConfig config;
  config.l1_regularization_strength = 1000.0f;
  Trainer trainer(Wrap(config), 2);
  EXPECT_EQ(trainer.Step({10.0f, 1.0f}, 0.01f), (Row{0.0f, 0.0f}));
  // Nothing seen at all, and nothing to hold it against.
  Trainer fresh(Wrap(GroupFtrlConfig()), 2);
  EXPECT_EQ(fresh.Step({0.0f, 0.0f}, 0.01f), (Row{0.0f, 0.0f}));
}

GroupAdagradConfig GroupLasso(float l2) {
  GroupAdagradConfig config;
  config.l2_regularization_strength = l2;
  config.beta = 1.0f;
  config.initial_accumulator_value = 0.0f;
  return config;
}

TEST(GroupAdagrad, OneDimension) {
  Trainer trainer(Wrap(GroupLasso(1.0f)), 1);
  ExpectNear(trainer.Step({10.0f}, 0.01f), {-0.008182f});
  ExpectNear(trainer.Step({10.0f}, 0.01f), {-0.014125f});
}

TEST(GroupAdagrad, TheRowSharesOneAccumulator) {
  Trainer trainer(Wrap(GroupLasso(0.5f)), 2);
  ExpectNear(trainer.Step({10.0f, 1.0f}, 0.01f), {-0.008639f, -0.000864f});
  EXPECT_EQ(trainer.state_float(0), 100.0f);
  ExpectNear(trainer.Step({1.0f, 5.0f}, 0.01f), {-0.009096f, -0.004778f});
  EXPECT_EQ(trainer.optimizer().state_bytes(), sizeof(float));
}

TEST(GroupAdagrad, RegularizationFromNoneToAll) {
  Trainer none(Wrap(GroupLasso(0.0f)), 2);
  ExpectNear(none.Step({10.0f, 1.0f}, 0.01f), {-0.009091f, -0.000909f});
  Trainer all(Wrap(GroupLasso(1000.0f)), 2);
  ExpectNear(all.Step({10.0f, 1.0f}, 0.01f), {0.0f, 0.0f});
}

TEST(GroupAdagrad, ZeroGradientOrLearningRateIsNoDivisionByZero) {
  GroupAdagradConfig empty = GroupLasso(0.0f);
  empty.beta = 0.0f;
  Trainer unseen(Wrap(empty), 2);
  unseen.w() = {0.5f, -0.5f};
  EXPECT_EQ(unseen.Step({0.0f, 0.0f}, 0.01f), (Row{0.5f, -0.5f}));
  Trainer new_row(Wrap(GroupLasso(0.0f)), 2);
  EXPECT_EQ(new_row.Step({0.0f, 0.0f}, 0.01f), (Row{0.0f, 0.0f}));
  Trainer no_rate(Wrap(GroupLasso(1.0f)), 2);
  no_rate.w() = {0.5f, -0.5f};
  EXPECT_EQ(no_rate.Step({1.0f, 2.0f}, 0.0f), (Row{0.5f, -0.5f}));
  EXPECT_EQ(no_rate.state_float(0), 4.0f);
}

TEST(Adadelta, TwoSteps) {
  Trainer trainer(Wrap(AdadeltaConfig()), 2);
  ExpectNear(trainer.Step({10.0f, 1.0f}, 0.01f), {-0.0031607f, -0.0030151f});
  EXPECT_NEAR(trainer.state_float(0), 10.0f, 1e-5);
  EXPECT_NEAR(trainer.state_float(1), 0.1f, 1e-6);
  ExpectNear(trainer.Step({10.0f, 1.0f}, 0.01f), {-0.0064035f, -0.0061047f});
}

TEST(Adam, TwoSteps) {
  Trainer trainer(Wrap(AdamConfig()), 2);
  ExpectNear(trainer.Step({10.0f, 1.0f}, 0.01f), {-0.00990099f, -0.00909091f});
  EXPECT_NEAR(trainer.state_float(0), 1.0f, 1e-6);
  EXPECT_NEAR(trainer.state_float(1), 0.1f, 1e-6);
  ExpectNear(trainer.Step({10.0f, 1.0f}, 0.01f), {-0.01983060f, -0.01842895f});
  // Powers of beta1 and beta2 for the third step.
  EXPECT_NEAR(trainer.state_float(4), 0.729f, 1e-6);
  EXPECT_NEAR(trainer.state_float(5), 0.970299f, 1e-6);
}

TEST(Adam, PowersThatNoLongerMatterBecomeZero) {
  AdamConfig adam;
  adam.beta1 = 0.5f;
  AmsgradConfig amsgrad;
  amsgrad.beta1 = 0.5f;
  Trainer trainers[] = {Trainer(Wrap(adam), 1), Trainer(Wrap(amsgrad), 1)};
  const std::size_t power[] = {2, 3};  // Behind m, v (and vhat).
  for (std::size_t i = 0; i < 2; ++i) {
    // 0.5^99 = 1.6e-30 is the last above 1e-30; a row begins with 0.5^1.
    for (int step = 0; step < 98; ++step) trainers[i].Step({1.0f}, 0.1f);
    EXPECT_EQ(trainers[i].state_float(power[i]), std::ldexp(1.0f, -99));
    trainers[i].Step({1.0f}, 0.1f);
    EXPECT_EQ(trainers[i].state_float(power[i]), 0.0f);
    const float before = trainers[i].w()[0];
    trainers[i].Step({1.0f}, 0.1f);
    EXPECT_EQ(trainers[i].state_float(power[i]), 0.0f);
    EXPECT_TRUE(std::isfinite(trainers[i].w()[0]));
    EXPECT_LT(trainers[i].w()[0], before);
  }
}

TEST(Adam, PowersMayBeginAtZero) {
  AdamConfig config;
  config.beta1 = 0.0f;
  config.beta2 = 0.0f;
  config.epsilon = 0.0f;
  config.weight_decay_factor = 0.0f;
  Trainer trainer(Wrap(config), 1);
  // m = g, v = g^2: every step is one of the learning rate, against the gradient's sign.
  EXPECT_NEAR(trainer.Step({4.0f}, 0.1f)[0], -0.1f, 1e-6);
  EXPECT_NEAR(trainer.Step({-0.5f}, 0.1f)[0], 0.0f, 1e-6);
}

TEST(Adam, Nesterov) {
  AdamConfig config;
  config.use_nesterov = true;
  Trainer trainer(Wrap(config), 2);
  ExpectNear(trainer.Step({10.0f, 1.0f}, 0.01f), {-0.01881188f, -0.01727273f});
  ExpectNear(trainer.Step({10.0f, 1.0f}, 0.01f), {-0.03297464f, -0.03059173f});
}

TEST(Amsgrad, EqualsAdamWhileTheSquaresGrow) {
  Trainer trainer(Wrap(AmsgradConfig()), 2);
  ExpectNear(trainer.Step({10.0f, 1.0f}, 0.01f), {-0.00990099f, -0.00909091f});
  ExpectNear(trainer.Step({10.0f, 1.0f}, 0.01f), {-0.01983060f, -0.01842895f});
}

TEST(Amsgrad, KeepsTheLargestSquare) {
  Trainer trainer(Wrap(AmsgradConfig()), 1);
  ExpectNear(trainer.Step({10.0f}, 0.01f), {-0.00990099f});
  ExpectNear(trainer.Step({1.0f}, 0.01f), {-0.01725208f});
}

TEST(Amsgrad, NesterovEqualsAdamsWhileTheSquaresGrow) {
  AmsgradConfig config;
  config.use_nesterov = true;
  Trainer trainer(Wrap(config), 2);
  ExpectNear(trainer.Step({10.0f, 1.0f}, 0.01f), {-0.01881188f, -0.01727273f});
  ExpectNear(trainer.Step({10.0f, 1.0f}, 0.01f), {-0.03297464f, -0.03059173f});
}

TEST(Momentum, TwoSteps) {
  Trainer trainer(Wrap(MomentumConfig()), 2);
  ExpectNear(trainer.Step({10.0f, 1.0f}, 0.01f), {-0.1f, -0.01f});
  EXPECT_NEAR(trainer.state_float(0), -0.1f, 1e-6);
  EXPECT_NEAR(trainer.state_float(1), -0.01f, 1e-6);
  ExpectNear(trainer.Step({10.0f, 1.0f}, 0.01f), {-0.29f, -0.029f});
}

TEST(Momentum, Nesterov) {
  MomentumConfig config;
  config.use_nesterov = true;
  Trainer trainer(Wrap(config), 2);
  ExpectNear(trainer.Step({10.0f, 1.0f}, 0.01f), {-0.19f, -0.019f});
  ExpectNear(trainer.Step({10.0f, 1.0f}, 0.01f), {-0.461f, -0.0461f});
}

TEST(MovingAverage, FollowsWithoutALearningRate) {
  Trainer trainer(Wrap(MovingAverageConfig()), 2);
  ExpectNear(trainer.Step({10.0f, 1.0f}, kNaN), {1.0f, 0.1f});
  ExpectNear(trainer.Step({10.0f, 1.0f}, kNaN), {1.9f, 0.19f});
  EXPECT_EQ(trainer.optimizer().num_dumps(), 0);
}

TEST(Rmsprop, TwoSteps) {
  Trainer trainer(Wrap(RmspropConfig()), 1);
  ExpectNear(trainer.Step({10.0f}, 0.01f), {-0.024025f});
  EXPECT_NEAR(trainer.state_float(0), 10.0f, 1e-5);
  ExpectNear(trainer.Step({10.0f}, 0.01f), {-0.042686f});
}

TEST(Rmsprop, TheLearningRateOfTheStepCounts) {
  RmspropConfig config;
  config.learning_rate = 100.0f;
  Trainer trainer(Wrap(config), 1);
  ExpectNear(trainer.Step({10.0f}, 0.01f), {-0.024025f});
}

TEST(RmspropV2, TwoSteps) {
  Trainer trainer(Wrap(RmspropV2Config()), 2);
  ExpectNear(trainer.Step({10.0f, 1.0f}, 0.01f), {-0.0090909f, -0.005f});
  EXPECT_EQ(trainer.state_float(0), 100.0f);
  EXPECT_EQ(trainer.state_float(1), 1.0f);
  ExpectNear(trainer.Step({10.0f, 1.0f}, 0.01f), {-0.0158549f, -0.0092045f});
}

TEST(BatchSoftmax, AveragesTheStepsBetweenOccurrences) {
  Trainer trainer(Wrap(BatchSoftmaxConfig()), 1);
  ExpectNear(trainer.Step({2.0f}, 0.1f, 1), {0.1f});
  // 0.9 * 0.1 + 0.1 * (4 - 1)
  ExpectNear(trainer.Step({1e9f}, 0.1f, 4), {0.39f});
}

TEST(BatchSoftmax, ConvergesToTheInterval) {
  Trainer trainer(Wrap(BatchSoftmaxConfig()), 1);
  for (std::int64_t step = 0; step < 1000; step += 5) trainer.Step({0.0f}, 0.1f, step);
  EXPECT_NEAR(1.0f / trainer.w()[0], 0.2f, 0.01f);
}

TEST(BatchSoftmax, RefusesNegativeStepsAndWideRows) {
  Trainer trainer(Wrap(BatchSoftmaxConfig()), 1);
  EXPECT_EQ(ErrorOf([&] { trainer.Step({1.0f}, 0.1f, -3); }),
            "global_step=-3 is negative, please investigate!");
  EXPECT_EQ(trainer.w(), Row{0.0f});
  EXPECT_EQ(ErrorOf([] { (void)MakeOptimizer(Wrap(BatchSoftmaxConfig()), 2); }),
            "batch_softmax needs a segment of dim 1, got 2.");
}

TEST(Dc, CorrectsForWhatTheWeightsHaveBecome) {
  const DcOptimizer dc(MakeOptimizer(Wrap(AdadeltaConfig()), 2), 0.1f);
  Row state(4, kNaN);
  auto* bytes = reinterpret_cast<std::byte*>(state.data());
  dc.base().InitState(bytes);
  Row w = {0.0f, 0.0f};
  const Row grad = {10.0f, 1.0f};
  const Row latest = {0.1f, 0.1f};
  dc.Step(w.data(), bytes, grad.data(), latest.data(), 0.01f, 0);
  ExpectNear(w, {-0.0031603f, -0.00301233f});
  EXPECT_NEAR(state[0], 8.1f, 1e-5);
  EXPECT_NEAR(state[1], 0.09801f, 1e-6);
  const Row zeros = {0.0f, 0.0f};
  dc.Step(w.data(), bytes, grad.data(), zeros.data(), 0.01f, 0);
  ExpectNear(w, {-0.0065548f, -0.00611400f});
  EXPECT_EQ(grad, (Row{10.0f, 1.0f}));
}

TEST(MakeOptimizer, RefusesWhatItCannotMake) {
  OptimizerConfig unset;
  EXPECT_EQ(ErrorOf([&] { (void)MakeOptimizer(unset, 1); }),
            "OptimizerConfig must be set type. Got ``.");
  unset.stochastic_rounding_float16 = true;
  EXPECT_EQ(ErrorOf([&] { (void)MakeOptimizer(unset, 1); }),
            "OptimizerConfig must be set type. Got `stochastic_rounding_float16: true`.");
  OptimizerConfig unknown;
  unknown.unknown_member = 61;
  EXPECT_EQ(ErrorOf([&] { (void)MakeOptimizer(unknown, 1); }),
            "optimizer is not implemented yet. Got `unknown member 61`.");
  EXPECT_EQ(ErrorOf([&] { (void)MakeOptimizer(Wrap(DcConfig()), 1); }),
            "optimizer is not implemented yet. Got `dc { }`.");
  EXPECT_EQ(ErrorOf([&] { (void)MakeOptimizer(Wrap(SgdConfig()), 0); }),
            "An optimizer needs a positive dim, got 0.");
}

TEST(MakeOptimizer, RefusesSettingsThatWouldGiveNaN) {
  AdagradConfig adagrad;
  adagrad.initial_accumulator_value = -0.5f;
  EXPECT_EQ(ErrorOf([&] { (void)MakeOptimizer(Wrap(adagrad), 1); }),
            "initial_accumulator_value must not be negative, got -0.500000.");
  adagrad.initial_accumulator_value = kNaN;
  EXPECT_THROW((void)MakeOptimizer(Wrap(adagrad), 1), std::invalid_argument);
  AdamConfig adam;
  adam.beta1 = 1.0f;
  EXPECT_EQ(ErrorOf([&] { (void)MakeOptimizer(Wrap(adam), 1); }),
            "beta1 must lie in [0, 1), got 1.000000.");
  FtrlConfig ftrl;
  ftrl.l1_regularization_strength = -1.0f;
  EXPECT_THROW((void)MakeOptimizer(Wrap(ftrl), 1), std::invalid_argument);
  AdadeltaConfig adadelta;
  adadelta.averaging_ratio = 1.5f;
  EXPECT_THROW((void)MakeOptimizer(Wrap(adadelta), 1), std::invalid_argument);
}

TEST(MakeOptimizer, RefusesNegativeMomentum) {
  RmspropConfig rmsprop;
  rmsprop.momentum = -0.1f;
  EXPECT_EQ(ErrorOf([&] { (void)MakeOptimizer(Wrap(rmsprop), 1); }),
            "momentum must not be negative, got -0.100000.");
  RmspropV2Config rmspropv2;
  rmspropv2.momentum = -0.1f;
  EXPECT_THROW((void)MakeOptimizer(Wrap(rmspropv2), 1), std::invalid_argument);
  rmsprop.momentum = 0.0f;
  EXPECT_NO_THROW((void)MakeOptimizer(Wrap(rmsprop), 1));
}

// Those whose elements do not depend on each other, and which come in any width.
std::vector<NamedOptimizer> ElementwiseOptimizers() {
  std::vector<NamedOptimizer> elementwise;
  for (const NamedOptimizer& optimizer : AllOptimizers()) {
    if (optimizer.name.rfind("group_", 0) != 0 && optimizer.name != "batch_softmax") {
      elementwise.push_back(optimizer);
    }
  }
  return elementwise;
}

class ElementwiseOptimizer : public ::testing::TestWithParam<NamedOptimizer> {};
class EveryOptimizer : public ::testing::TestWithParam<NamedOptimizer> {};

TEST_P(EveryOptimizer, StateIsAMultipleOfFourBytesAndInitialized) {
  Trainer trainer(GetParam().config, GetParam().dim);
  EXPECT_EQ(trainer.optimizer().state_bytes() % 4, 0u);
  EXPECT_EQ(trainer.optimizer().dim(), GetParam().dim);
  for (std::size_t i = 0; i < trainer.optimizer().state_bytes() / 4; ++i) {
    EXPECT_FALSE(std::isnan(trainer.state_float(i))) << i;
  }
}

TEST_P(EveryOptimizer, AZeroGradientOnANewRowLeavesNumbers) {
  Trainer trainer(GetParam().config, GetParam().dim);
  for (const float value : trainer.Step(Row(GetParam().dim, 0.0f), 0.1f)) EXPECT_EQ(value, 0.0f);
}

// Vector instructions, and which of them, must not change the bits: an element of a wide row does
// what a row of its own would do.
TEST_P(ElementwiseOptimizer, WidthDoesNotChangeTheBits) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  for (const std::size_t dim : {2u, 7u, 16u, 31u, 64u}) {
    Trainer wide(GetParam().config, dim);
    std::vector<Trainer> narrow;
    for (std::size_t i = 0; i < dim; ++i) narrow.emplace_back(GetParam().config, 1);
    for (int step = 0; step < 5; ++step) {
      Row grad(dim);
      for (float& g : grad) g = normal(random);
      wide.Step(grad, 0.05f, step);
      for (std::size_t i = 0; i < dim; ++i) {
        narrow[i].Step({grad[i]}, 0.05f, step);
        ASSERT_EQ(wide.w()[i], narrow[i].w()[0]) << "dim " << dim << " element " << i;
      }
    }
  }
}

TEST_P(EveryOptimizer, StepsStayWithinTheRow) {
  const std::size_t dim = GetParam().dim;
  const auto optimizer = MakeOptimizer(GetParam().config, dim);
  const std::size_t state_floats = optimizer->state_bytes() / sizeof(float);
  // One guard behind the weights and one behind the state.
  Row memory(dim + 1 + state_floats + 1, 123.0f);
  auto* state = reinterpret_cast<std::byte*>(memory.data() + dim + 1);
  optimizer->InitState(state);
  const Row grad(dim, 1.0f);
  optimizer->Step(memory.data(), state, grad.data(), 0.1f, 1);
  EXPECT_EQ(memory[dim], 123.0f);
  EXPECT_EQ(memory.back(), 123.0f);
}

INSTANTIATE_TEST_SUITE_P(Optimizers, ElementwiseOptimizer,
                         ::testing::ValuesIn(ElementwiseOptimizers()),
                         [](const auto& info) { return info.param.name; });
// Rows of a value behind two floats of another segment, and the state behind it. One comes twice.
TEST_P(EveryOptimizer, StepsOnManyRowsAreStepsOnEach) {
  constexpr std::size_t kBefore = 2;
  const std::size_t dim = GetParam().dim;
  std::vector<Trainer> expected;
  std::vector<Row> rows, grads;
  for (int i = 0; i < 3; ++i) {
    Trainer& trainer = expected.emplace_back(GetParam().config, dim);
    std::fill(trainer.w().begin(), trainer.w().end(), 0.25f * static_cast<float>(i));
    const std::size_t state_floats = trainer.optimizer().state_bytes() / sizeof(float);
    Row& row = rows.emplace_back(kBefore, 7.0f);
    row.insert(row.end(), trainer.w().begin(), trainer.w().end());
    row.resize(row.size() + state_floats);
    std::memcpy(row.data() + kBefore + dim, trainer.state(), state_floats * sizeof(float));
  }
  const std::vector<std::size_t> order = {1, 0, 2, 1};
  std::vector<std::byte*> row_starts;
  for (std::size_t i = 0; i < order.size(); ++i) {
    Row& grad = grads.emplace_back(kBefore, kNaN);
    for (std::size_t d = 0; d < dim; ++d) grad.push_back(0.1f * static_cast<float>(i + d) - 0.2f);
    row_starts.push_back(reinterpret_cast<std::byte*>(rows[order[i]].data()));
  }
  std::vector<const float*> grad_starts;
  for (const Row& grad : grads) grad_starts.push_back(grad.data());

  const Optimizer& optimizer = expected[0].optimizer();
  optimizer.Steps({order.size(), row_starts.data(), grad_starts.data(), kBefore,
                   (kBefore + dim) * sizeof(float)},
                  0.1f, 3);

  for (std::size_t i = 0; i < order.size(); ++i) {
    expected[order[i]].Step(Row(grads[i].begin() + kBefore, grads[i].end()), 0.1f, 3);
  }
  for (std::size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(Row(rows[i].begin(), rows[i].begin() + kBefore), Row(kBefore, 7.0f));
    EXPECT_EQ(Row(rows[i].begin() + kBefore, rows[i].begin() + kBefore + dim), expected[i].w());
    EXPECT_EQ(
        std::memcmp(rows[i].data() + kBefore + dim, expected[i].state(), optimizer.state_bytes()),
        0);
  }
}

INSTANTIATE_TEST_SUITE_P(Optimizers, EveryOptimizer, ::testing::ValuesIn(AllOptimizers()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace monolith::core
