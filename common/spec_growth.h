// Whether an optimizer's spec is another one and one admission more.
#ifndef OPTSHARD_COMMON_SPEC_GROWTH_H_
#define OPTSHARD_COMMON_SPEC_GROWTH_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "common/optimizer_spec.h"

namespace optshard {

// What a valid spec was before what its last admission brought. Pure; thread-safe.
OptimizerSpec BeforeLastAdmission(const OptimizerSpec& spec);

// That `next` is valid, and is `present` with one admission more: of groups, or of parameters of
// the groups that are there. INVALID_ARGUMENT as OptimizerSpec::Validate, or naming what does not
// go on from `present`. Pure; thread-safe.
absl::Status CheckGrowth(const OptimizerSpec& present, const OptimizerSpec& next);

// What ranks that add param groups or parameters compare: of a spec that has grown, what
// OptimizerSpec::Digest and FirstDifference do, and the hyperparameters of the last admission's
// groups, all set. The other groups' may have changed since they were given. Pure; thread-safe.
uint64_t GrowthDigest(const OptimizerSpec& spec);
// Such as
//   option "amsgrad" of param group 1: rank 0 has true, rank 1 has false
// nullopt where they are alike.
absl::optional<std::string> FirstGrowthDifference(const OptimizerSpec& a, absl::string_view a_name,
                                                  const OptimizerSpec& b, absl::string_view b_name);

}  // namespace optshard

#endif  // OPTSHARD_COMMON_SPEC_GROWTH_H_
