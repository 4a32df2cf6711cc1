// The recovery point: the step after which ranks go on that bring their state back.
#ifndef OPTSHARD_SERVER_COORDINATOR_RECOVERY_POINT_H_
#define OPTSHARD_SERVER_COORDINATOR_RECOVERY_POINT_H_

#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "common/ids.h"
#include "common/membership/membership.h"
#include "common/step_transition.h"

namespace optshard {

// What an owner has of its steps that says this of them. Where it has said so before something went
// wrong (not `is_final`), it may have gone on since: then only a step that was open says anything.
OwnerSteps StepsOf(const StepProgress& progress, bool is_final = true);

// A pure function: DecideTransition (common/step_transition.h), with the errors that ranks are
// told. `kept` is by rank, nullopt for a rank that brings nothing. This also settles a step that
// failed in doubt, because it is known of every rank whether it applied it. The generations may
// differ: a server that is killed while the job forms again may have taken over the new plan for
// only some of its ranks. Only the step counts.
//   INVALID_ARGUMENT  RanksDisagree: some ranks bring state and some do not
//   DATA_LOSS         TornStep naming the ranks: one ended while it applied a step, or some have
//                     applied a step that others have not
absl::StatusOr<StepProgress> FindRecoveryPoint(absl::Span<const absl::optional<KeptState>> kept);

}  // namespace optshard

#endif  // OPTSHARD_SERVER_COORDINATOR_RECOVERY_POINT_H_
