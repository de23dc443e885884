#include "core/optimizer/optimizer.h"

#include <stdexcept>
#include <type_traits>

#include "core/optimizer/factories.h"

namespace monolith::core {
namespace {

struct OptimizerMaker {
  const OptimizerConfig& config;
  std::size_t dim;

  std::unique_ptr<Optimizer> operator()(const std::monostate&) const {
    if (config.unknown_member != 0) return Refuse();
    throw std::invalid_argument("OptimizerConfig must be set type. Got `" + Describe(config) +
                                "`.");
  }
  std::unique_ptr<Optimizer> operator()(const DcConfig&) const { return Refuse(); }
  std::unique_ptr<Optimizer> operator()(const SgdConfig& c) const { return MakeSgd(c, dim); }
  std::unique_ptr<Optimizer> operator()(const AdagradConfig& c) const {
    return MakeAdagrad(c, dim);
  }
  std::unique_ptr<Optimizer> operator()(const DynamicWdAdagradConfig& c) const {
    return MakeDynamicWdAdagrad(c, dim);
  }
  std::unique_ptr<Optimizer> operator()(const FtrlConfig& c) const { return MakeFtrl(c, dim); }
  std::unique_ptr<Optimizer> operator()(const GroupFtrlConfig& c) const {
    return MakeGroupFtrl(c, dim);
  }
  std::unique_ptr<Optimizer> operator()(const GroupAdagradConfig& c) const {
    return MakeGroupAdagrad(c, dim);
  }
  std::unique_ptr<Optimizer> operator()(const AdadeltaConfig& c) const {
    return MakeAdadelta(c, dim);
  }
  std::unique_ptr<Optimizer> operator()(const AdamConfig& c) const { return MakeAdam(c, dim); }
  std::unique_ptr<Optimizer> operator()(const AmsgradConfig& c) const {
    return MakeAmsgrad(c, dim);
  }
  std::unique_ptr<Optimizer> operator()(const MomentumConfig& c) const {
    return MakeMomentum(c, dim);
  }
  std::unique_ptr<Optimizer> operator()(const MovingAverageConfig& c) const {
    return MakeMovingAverage(c, dim);
  }
  std::unique_ptr<Optimizer> operator()(const BatchSoftmaxConfig& c) const {
    return MakeBatchSoftmax(c, dim);
  }
  std::unique_ptr<Optimizer> operator()(const RmspropConfig& c) const {
    return MakeRmsprop(c, dim);
  }
  std::unique_ptr<Optimizer> operator()(const RmspropV2Config& c) const {
    return MakeRmspropV2(c, dim);
  }

  [[noreturn]] std::unique_ptr<Optimizer> Refuse() const {
    throw std::invalid_argument("optimizer is not implemented yet. Got `" + Describe(config) +
                                "`.");
  }
};

}  // namespace

void Optimizer::AppendDump(const std::byte* state, std::string* optimizer_dump) const {
  const std::size_t before = optimizer_dump->size();
  optimizer_dump->resize(before + DumpBytes(state));
  WriteDump(state, optimizer_dump->data() + before);
}

std::unique_ptr<Optimizer> MakeOptimizer(const OptimizerConfig& config, std::size_t dim) {
  if (dim == 0) throw std::invalid_argument("An optimizer needs a positive dim, got 0.");
  std::unique_ptr<Optimizer> optimizer = std::visit(OptimizerMaker{config, dim}, config.type);
  if (config.stochastic_rounding_float16) optimizer = MakeStochasticRounding(std::move(optimizer));
  return optimizer;
}

}  // namespace monolith::core
