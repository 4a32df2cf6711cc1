// Which ranks a group has lost: found dead, or gone while another one needs them.
#ifndef OPTSHARD_SERVER_COORDINATOR_LOSSES_H_
#define OPTSHARD_SERVER_COORDINATOR_LOSSES_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "common/ids.h"
#include "server/coordinator/liveness.h"
#include "server/coordinator/member.h"

namespace optshard {

// Members, by rank, that are found dead become kLost. PeerLost naming the one that died first, the
// likely cause of the others' end; nullopt where nobody has died.
absl::optional<absl::Status> MarkLost(absl::Span<Member> members, absl::string_view optimizer,
                                      const LivenessOptions& options, absl::Time now);

// The member's state has come back with another process, so the member is dead though nobody has
// noticed: it becomes kLost. PeerLost naming it.
absl::Status MarkReplaced(Member& member, Rank rank, int64_t successor_pid);

// A step that some rank works on and another has left before can never end. PeerLost naming the one
// that left; nullopt where there is no such step.
absl::optional<absl::Status> FindAbandoned(absl::Span<const Member> members);

}  // namespace optshard

#endif  // OPTSHARD_SERVER_COORDINATOR_LOSSES_H_
