// Whether an optimizer's spec is another one and one admission more.
#ifndef OPTSHARD_COMMON_SPEC_GROWTH_H_
#define OPTSHARD_COMMON_SPEC_GROWTH_H_

#include "absl/status/status.h"
#include "common/optimizer_spec.h"

namespace optshard {

// That `next` is valid, and is `present` with the groups of one admission more. INVALID_ARGUMENT as
// OptimizerSpec::Validate, or naming what does not go on from `present`. Pure; thread-safe.
absl::Status CheckGrowth(const OptimizerSpec& present, const OptimizerSpec& next);

}  // namespace optshard

#endif  // OPTSHARD_COMMON_SPEC_GROWTH_H_
