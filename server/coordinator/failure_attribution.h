// Failure attribution: which rank is to blame when a member reports a failed operation and no rank
// is known to be dead.
//
// Failures cascade: rank 1 is killed, rank 0 notices and closes its connections, rank 2 sees that
// rank 0 closed its connection and suspects rank 0. So a suspicion waits until each member has
// either shown that it is alive or turned out to be dead (docs/decisions/0005).
#ifndef OPTSHARD_SERVER_COORDINATOR_FAILURE_ATTRIBUTION_H_
#define OPTSHARD_SERVER_COORDINATOR_FAILURE_ATTRIBUTION_H_

#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "common/ids.h"
#include "common/membership/membership.h"
#include "server/coordinator/liveness.h"

namespace optshard {

struct Suspicion {
  Rank reporter = -1;
  Rank suspect = -1;  // -1: nobody
  absl::Status observed;
  absl::Time when;
};

// What the coordinator knows of one rank.
struct Evidence {
  Rank rank = -1;
  MemberState state = MemberState::kMissing;
  StepNumber finished = 0;
  Pulse pulse;
};

// The group's failure once it is certain; nullopt: wait. `evidence` is of all ranks, none of which
// counts as dead. `suspicions` are in the order in which they came. In order of precedence:
//   1. a suspect that has left the job: PeerLost
//   2. once all have been heard from since the first suspicion, and `grace` is over:
//      a. an error of the reporter's own (it suspects nobody): that error
//      b. a suspect that has not itself reported anything, else the first suspect: PeersTimedOut
//         where that was observed, else PeerLost
absl::optional<absl::Status> AttributeFailure(absl::Span<const Suspicion> suspicions,
                                              absl::Span<const Evidence> evidence,
                                              absl::Duration grace, absl::Time now);

}  // namespace optshard

#endif  // OPTSHARD_SERVER_COORDINATOR_FAILURE_ATTRIBUTION_H_
