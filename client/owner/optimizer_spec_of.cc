#include "client/owner/optimizer_spec_of.h"

#include "client/rule_options.h"
#include "client/status_error.h"
#include "common/state_format.h"
#include "common/state_options.h"
#include "server/update/update_costs.h"

namespace optshard {

OptimizerSpec OptimizerSpecOf(const ShardedOptimizerOptions& options, const ParameterSpace& space,
                              const std::vector<torch::optim::OptimizerParamGroup>& groups) {
  OptimizerSpec spec;
  spec.world_size = options.world_size;
  for (const torch::optim::OptimizerParamGroup& group : groups) {
    const auto& rule = static_cast<const RuleOptions&>(group.options());
    spec.rules.push_back({rule.rule(), rule.values()});
  }
  spec.space = WithUpdateCosts(space, spec.rules);
  spec.gradient_mode = options.gradient_mode;
  spec.policy = options.policy;
  spec.buckets = options.buckets;
  spec.share_parameters = options.share_parameters;
  spec.state.master_weights = options.master_weights;
  spec.state.master_weight_bits = options.master_weight_bits;
  spec.state.publish_dtype = ValueOrThrow(ParsePublishDType(options.publish_dtype));
  spec.state.format = ValueOrThrow(ParseStateFormat(options.state_dtype));
  return spec;
}

}  // namespace optshard
