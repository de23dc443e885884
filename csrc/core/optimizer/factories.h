// One maker per optimizer; MakeOptimizer chooses among them. All throw std::invalid_argument when a
// setting is out of range. `dim` is positive.
#pragma once

#include <cstddef>
#include <memory>

#include "core/optimizer/optimizer.h"

namespace monolith::core {

std::unique_ptr<Optimizer> MakeSgd(const SgdConfig& config, std::size_t dim);
std::unique_ptr<Optimizer> MakeAdagrad(const AdagradConfig& config, std::size_t dim);
std::unique_ptr<Optimizer> MakeDynamicWdAdagrad(const DynamicWdAdagradConfig& config,
                                                std::size_t dim);
std::unique_ptr<Optimizer> MakeFtrl(const FtrlConfig& config, std::size_t dim);
std::unique_ptr<Optimizer> MakeGroupFtrl(const GroupFtrlConfig& config, std::size_t dim);
std::unique_ptr<Optimizer> MakeGroupAdagrad(const GroupAdagradConfig& config, std::size_t dim);
std::unique_ptr<Optimizer> MakeAdadelta(const AdadeltaConfig& config, std::size_t dim);
std::unique_ptr<Optimizer> MakeAdam(const AdamConfig& config, std::size_t dim);
std::unique_ptr<Optimizer> MakeAmsgrad(const AmsgradConfig& config, std::size_t dim);
std::unique_ptr<Optimizer> MakeMomentum(const MomentumConfig& config, std::size_t dim);
std::unique_ptr<Optimizer> MakeMovingAverage(const MovingAverageConfig& config, std::size_t dim);
std::unique_ptr<Optimizer> MakeRmsprop(const RmspropConfig& config, std::size_t dim);
std::unique_ptr<Optimizer> MakeRmspropV2(const RmspropV2Config& config, std::size_t dim);
std::unique_ptr<Optimizer> MakeBatchSoftmax(const BatchSoftmaxConfig& config, std::size_t dim);

// Rounds the weights to float16 after each step of `base`; see stochastic_rounding.cc.
std::unique_ptr<Optimizer> MakeStochasticRounding(std::unique_ptr<Optimizer> base);

}  // namespace monolith::core
