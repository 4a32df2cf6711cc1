// After which step ranks go on that bring back what they kept: a pure function.
#ifndef OPTSHARD_SERVER_COORDINATOR_RECOVERY_POINT_H_
#define OPTSHARD_SERVER_COORDINATOR_RECOVERY_POINT_H_

#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "common/ids.h"
#include "common/membership/membership.h"

namespace optshard {

// `kept` is by rank, nullopt for one that brings nothing. Step 0 where nobody does: all begin.
// Otherwise the step that all have applied and none has gone beyond, and how many calls were
// skipped since: as many as anybody knows of, for all had agreed to each of them. A step that
// failed in doubt is settled by that: here is known, of every rank, whether it applied it. The
// generations may differ: a server that is killed while the job forms again has taken over the new
// plan for some of its ranks only. What counts is the step.
//   INVALID_ARGUMENT  RanksDisagree: some bring state and some do not
//   DATA_LOSS         TornStep naming the ranks: one was ended while it applied a step, or some
//   have
//                     applied a step that others have not
absl::StatusOr<StepProgress> FindRecoveryPoint(absl::Span<const absl::optional<KeptState>> kept);

}  // namespace optshard

#endif  // OPTSHARD_SERVER_COORDINATOR_RECOVERY_POINT_H_
