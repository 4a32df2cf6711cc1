// Which ranks a group has lost: those that count as dead, and those that left while others still
// need them.
#ifndef OPTSHARD_SERVER_COORDINATOR_LOSSES_H_
#define OPTSHARD_SERVER_COORDINATOR_LOSSES_H_

#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "common/ids.h"
#include "server/coordinator/failure_attribution.h"
#include "server/coordinator/liveness.h"
#include "server/coordinator/member.h"

namespace optshard {

// Sets the members that count as dead to kLost. `members` is by rank. Returns PeerLost naming the
// one that died first, which is the likely cause of the other deaths; nullopt where none has died.
absl::optional<absl::Status> MarkLost(absl::Span<Member> members, absl::string_view optimizer,
                                      const LivenessOptions& options, absl::Time now);

// Another process has brought the member's state back, so the member is dead although nobody has
// noticed. Sets it to kLost and returns PeerLost naming it.
absl::Status MarkReplaced(Member& member, Rank rank, int64_t successor_pid);

// What is known of each member, for AttributeFailure.
std::vector<Evidence> EvidenceOf(absl::Span<const Member> members);

// Looks for a step that one rank works on although another rank left before it: such a step cannot
// end. PeerLost naming the rank that left; nullopt where there is none.
absl::optional<absl::Status> FindAbandoned(absl::Span<const Member> members);

}  // namespace optshard

#endif  // OPTSHARD_SERVER_COORDINATOR_LOSSES_H_
