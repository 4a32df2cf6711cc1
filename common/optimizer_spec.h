// What an optimizer is: all that its ranks construct alike. One value from the user's options
// through attach and join to the shard owner.
#ifndef OPTSHARD_COMMON_OPTIMIZER_SPEC_H_
#define OPTSHARD_COMMON_OPTIMIZER_SPEC_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "common/bucket.h"
#include "common/gradient_mode.h"
#include "common/group_rule.h"
#include "common/parameter_space.h"
#include "common/partition.h"
#include "common/state_options.h"

namespace optshard {

// Thread-compatible value type.
struct OptimizerSpec {
  int world_size = 1;
  ParameterSpace space;
  // By param group. The hyperparameters are those that the user gave. They may change from step to
  // step, so FirstDifference leaves them out; each step compares them.
  std::vector<GroupRule> rules;
  GradientMode gradient_mode = GradientMode::kReduce;
  PartitionPolicy policy = PartitionPolicy::kGreedy;
  BucketOptions buckets;
  StateOptions state;
  // One copy of the parameters for all ranks of a host.
  bool share_parameters = false;

  // INVALID_ARGUMENT naming the field, its value and what was expected; the limits are those of
  // common/request_limits.h. What a valid spec leads to (layout, partition, buckets) fits into
  // memory and is computed within a second or so. Neither the rules nor the values of
  // hyperparameters are checked: that takes the registry of rules.
  absl::Status Validate() const;

  // XXH3 of what FirstDifference compares: equal on every machine for specs without a difference.
  uint64_t Digest() const;
};

// The first field in which two specs differ, with both sides, such as
//   gradient mode: rank 0 has "reduce", rank 1 has "averaged"
// nullopt where they are alike.
absl::optional<std::string> FirstDifference(const OptimizerSpec& a, absl::string_view a_name,
                                            const OptimizerSpec& b, absl::string_view b_name);

}  // namespace optshard

#endif  // OPTSHARD_COMMON_OPTIMIZER_SPEC_H_
