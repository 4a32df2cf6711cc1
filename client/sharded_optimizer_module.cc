// In a file of its own: torch/nn/module.h is most of what LibTorch takes to compile.
#include <torch/nn/module.h>

#include "client/sharded_optimizer.h"

namespace optshard {
namespace {

ShardedOptimizerOptions WithNames(ShardedOptimizerOptions options,
                                  const torch::nn::Module& module) {
  if (!options.parameter_names.empty()) return options;
  for (const auto& parameter : module.named_parameters()) {
    options.parameter_names.push_back(parameter.key());
  }
  return options;
}

}  // namespace

ShardedOptimizer::ShardedOptimizer(const torch::nn::Module& module, const RuleOptions& defaults,
                                   ShardedOptimizerOptions options)
    : ShardedOptimizer(module.parameters(), defaults, WithNames(std::move(options), module)) {}

}  // namespace optshard
