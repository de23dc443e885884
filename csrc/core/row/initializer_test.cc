#include "core/row/initializer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace monolith::core {
namespace {

template <typename Config>
std::vector<float> Initialized(const Config& member, std::size_t dim) {
  InitializerConfig config;
  config.type = member;
  const auto initializer = MakeInitializer(config, dim);
  EXPECT_EQ(initializer->dim(), dim);
  std::vector<float> values(dim, 77.0f);
  initializer->Initialize(values.data());
  return values;
}

template <typename Function>
std::string ErrorOf(Function&& function) {
  try {
    function();
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "no error";
}

TEST(Initializer, Constants) {
  EXPECT_EQ(Initialized(ZerosConfig(), 3), (std::vector<float>{0.0f, 0.0f, 0.0f}));
  EXPECT_EQ(Initialized(OnesConfig(), 2), (std::vector<float>{1.0f, 1.0f}));
  ConstantsConfig constants;
  constants.constant = 3.0f;
  EXPECT_EQ(Initialized(constants, 2), (std::vector<float>{3.0f, 3.0f}));
}

TEST(Initializer, UniformFillsItsRange) {
  RandomUniformConfig uniform;
  uniform.minval = -1.0f;
  uniform.maxval = 3.0f;
  const auto values = Initialized(uniform, 100000);
  EXPECT_GE(*std::min_element(values.begin(), values.end()), -1.0f);
  EXPECT_LT(*std::max_element(values.begin(), values.end()), 3.0f);
  EXPECT_LT(*std::min_element(values.begin(), values.end()), -0.99f);
  EXPECT_GT(*std::max_element(values.begin(), values.end()), 2.99f);
  double sum = 0.0;
  for (const float value : values) sum += value;
  EXPECT_NEAR(sum / 100000, 1.0, 0.02);  // Standard deviation of the mean: 4 / sqrt(12 n) = 0.0037.
}

TEST(Initializer, UniformNeverReachesMaxval) {
  RandomUniformConfig uniform;  // Two floats that are neighbours: every product rounds to one.
  uniform.minval = 1.0f;
  uniform.maxval = 1.0f + std::numeric_limits<float>::epsilon();
  for (const float value : Initialized(uniform, 1000)) ASSERT_EQ(value, 1.0f);
  uniform.maxval = 1.0f;
  EXPECT_EQ(Initialized(uniform, 1), std::vector<float>{1.0f});
}

TEST(Initializer, UniformDrawsTheSameInEveryFreshThread) {
  std::vector<float> first, second;
  std::thread([&] { first = Initialized(RandomUniformConfig(), 8); }).join();
  std::thread([&] { second = Initialized(RandomUniformConfig(), 8); }).join();
  EXPECT_EQ(first, second);
  // The Mersenne twister with its default seed.
  std::mt19937 random;
  EXPECT_NEAR(first[0], -0.05 + random() * 0x1p-32 * 0.1, 1e-7);
  EXPECT_NEAR(first[1], -0.05 + random() * 0x1p-32 * 0.1, 1e-7);
}

TEST(Initializer, RefusesWhatItCannotMake) {
  InitializerConfig config;
  EXPECT_EQ(ErrorOf([&] { (void)MakeInitializer(config, 1); }),
            "InitializerConfig must be set type. Got ``.");
  config.unknown_member = 4;
  EXPECT_EQ(ErrorOf([&] { (void)MakeInitializer(config, 1); }),
            "Unsupported initializer: unknown member 4.");
  RandomUniformConfig uniform;
  uniform.minval = 1.0f;
  config.type = uniform;
  EXPECT_EQ(ErrorOf([&] { (void)MakeInitializer(config, 1); }),
            "random_uniform needs finite minval <= maxval, got 1.000000 and 0.050000.");
  uniform.minval = -std::numeric_limits<float>::infinity();
  config.type = uniform;
  EXPECT_THROW((void)MakeInitializer(config, 1), std::invalid_argument);
}

}  // namespace
}  // namespace monolith::core
