// One config of every optimizer, for tests that hold for all of them.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "core/table/table_config.h"

namespace monolith::core::testing {

struct NamedOptimizer {
  std::string name;
  OptimizerConfig config;
  std::size_t dim = 3;
};

template <typename Config>
OptimizerConfig Wrap(const Config& config) {
  OptimizerConfig wrapped;
  wrapped.type = config;
  return wrapped;
}

// Settings are chosen so that each of them matters.
inline std::vector<NamedOptimizer> AllOptimizers() {
  AdagradConfig adagrad;
  adagrad.weight_decay_factor = 0.1f;
  DynamicWdAdagradConfig dynamic_wd;
  dynamic_wd.weight_decay_factor = 0.1f;
  DynamicWdAdagradConfig decoupled = dynamic_wd;
  decoupled.decouple_weight_decay = true;
  FtrlConfig ftrl;
  ftrl.l1_regularization_strength = 0.01f;
  ftrl.l2_regularization_strength = 0.1f;
  ftrl.beta = 1.0f;
  GroupFtrlConfig group_ftrl;
  group_ftrl.l1_regularization_strength = 0.01f;
  group_ftrl.l2_regularization_strength = 0.1f;
  GroupAdagradConfig group_adagrad;
  group_adagrad.beta = 1.0f;
  group_adagrad.l2_regularization_strength = 0.01f;
  group_adagrad.weight_decay_factor = 0.1f;
  AdadeltaConfig adadelta;
  adadelta.weight_decay_factor = 0.1f;
  AdamConfig adam;
  adam.weight_decay_factor = 0.1f;
  AdamConfig nesterov_adam = adam;
  nesterov_adam.use_nesterov = true;
  AmsgradConfig amsgrad;
  amsgrad.weight_decay_factor = 0.1f;
  AmsgradConfig nesterov_amsgrad = amsgrad;
  nesterov_amsgrad.use_nesterov = true;
  MomentumConfig momentum;
  momentum.weight_decay_factor = 0.1f;
  MomentumConfig nesterov_momentum = momentum;
  nesterov_momentum.use_nesterov = true;
  RmspropConfig rmsprop;
  rmsprop.weight_decay_factor = 0.1f;
  RmspropV2Config rmspropv2;
  rmspropv2.weight_decay_factor = 0.1f;
  return {
      {"sgd", Wrap(SgdConfig()), 3},
      {"adagrad", Wrap(adagrad), 3},
      {"dynamic_wd_adagrad", Wrap(dynamic_wd), 3},
      {"decoupled_wd_adagrad", Wrap(decoupled), 3},
      {"ftrl", Wrap(ftrl), 3},
      {"group_ftrl", Wrap(group_ftrl), 3},
      {"group_adagrad", Wrap(group_adagrad), 3},
      {"adadelta", Wrap(adadelta), 3},
      {"adam", Wrap(adam), 3},
      {"nesterov_adam", Wrap(nesterov_adam), 3},
      {"amsgrad", Wrap(amsgrad), 3},
      {"nesterov_amsgrad", Wrap(nesterov_amsgrad), 3},
      {"momentum", Wrap(momentum), 3},
      {"nesterov_momentum", Wrap(nesterov_momentum), 3},
      {"moving_average", Wrap(MovingAverageConfig()), 3},
      {"rmsprop", Wrap(rmsprop), 3},
      {"rmspropv2", Wrap(rmspropv2), 3},
      {"batch_softmax", Wrap(BatchSoftmaxConfig()), 1},
  };
}

}  // namespace monolith::core::testing
