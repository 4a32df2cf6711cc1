#include "client/owner/optimizer_spec_choice.h"

#include "common/dtype.h"
#include "common/state_format.h"
#include "common/state_options.h"

namespace optshard {

absl::StatusOr<OptimizerSpec> MakeOptimizerSpec(const ShardedOptimizerOptions& options,
                                                const std::vector<GroupRule>& rules,
                                                const ParameterSpace& space) {
  const absl::StatusOr<StateFormat> format = ParseStateFormat(options.state_dtype);
  if (!format.ok()) return format.status();
  const absl::StatusOr<DType> publish_dtype = ParsePublishDType(options.publish_dtype);
  if (!publish_dtype.ok()) return publish_dtype.status();
  OptimizerSpec spec;
  spec.world_size = options.world_size;
  spec.space = space;
  spec.rules = rules;
  spec.gradient_mode = options.gradient_mode;
  spec.policy = options.policy;
  spec.buckets = options.buckets;
  spec.share_parameters = options.share_parameters;
  spec.state.master_weights = options.master_weights;
  spec.state.master_weight_bits = options.master_weight_bits;
  spec.state.publish_dtype = *publish_dtype;
  spec.state.format = *format;
  return spec;
}

}  // namespace optshard
