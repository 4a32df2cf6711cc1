// What a trainer's options say to the owners and the coordinator.
#ifndef OPTSHARD_CLIENT_OWNER_OPTIMIZER_SPEC_OF_H_
#define OPTSHARD_CLIENT_OWNER_OPTIMIZER_SPEC_OF_H_

#include <torch/optim/optimizer.h>

#include <vector>

#include "client/sharded_optimizer_options.h"
#include "common/optimizer_spec.h"
#include "common/parameter_space.h"

namespace optshard {

// The options of `groups` are RuleOptions, and `space` gets the costs of their rules. Throws
// StatusError (INVALID_ARGUMENT) for a name of a type that is not to be chosen; the rest is not
// validated. Thread-safe.
OptimizerSpec OptimizerSpecOf(const ShardedOptimizerOptions& options, const ParameterSpace& space,
                              const std::vector<torch::optim::OptimizerParamGroup>& groups);

}  // namespace optshard

#endif  // OPTSHARD_CLIENT_OWNER_OPTIMIZER_SPEC_OF_H_
