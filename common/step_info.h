// What a step did.
#ifndef OPTSHARD_COMMON_STEP_INFO_H_
#define OPTSHARD_COMMON_STEP_INFO_H_

#include "absl/time/time.h"
#include "common/ids.h"

namespace optshard {

struct StepInfo {
  StepNumber step = 0;
  // No parameter had a gradient on any rank: nothing changed, and `step` is the last finished one.
  bool skipped = false;
  absl::Duration prepare;  // gradients complete at their owners
  absl::Duration commit;   // all ranks agreed
  absl::Duration apply;    // updated and published
};

}  // namespace optshard

#endif  // OPTSHARD_COMMON_STEP_INFO_H_
