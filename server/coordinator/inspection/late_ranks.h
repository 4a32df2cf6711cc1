// Who waits for whom.
#ifndef OPTSHARD_SERVER_COORDINATOR_INSPECTION_LATE_RANKS_H_
#define OPTSHARD_SERVER_COORDINATOR_INSPECTION_LATE_RANKS_H_

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/ids.h"
#include "common/membership/membership.h"

namespace optshard {

// How far a rank was, and when that was known.
struct RankProgress {
  Rank rank = 0;
  StepProgress progress;
  absl::Duration age;  // how long ago
};

// The ranks that `waiting` waits for in its step, which it has been in for `since`: those that have
// done fewer calls, or have not begun the same one. What is older than `since` does not count,
// since the rank may have come meanwhile. Empty where it is in no step.
std::vector<Rank> RanksBehind(const StepProgress& waiting, absl::Duration since,
                              absl::Span<const RankProgress> others);

// "rank 3", "ranks 3, 5", "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 12 more".
std::string RanksText(absl::Span<const Rank> ranks);

}  // namespace optshard

#endif  // OPTSHARD_SERVER_COORDINATOR_INSPECTION_LATE_RANKS_H_
