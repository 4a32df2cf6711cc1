// What the coordinator knows of one rank of a group.
#ifndef OPTSHARD_SERVER_COORDINATOR_MEMBER_H_
#define OPTSHARD_SERVER_COORDINATOR_MEMBER_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/ids.h"
#include "common/membership/membership.h"
#include "server/coordinator/liveness.h"

namespace optshard {

// Number of a member's event stream; a resumed one has a higher number.
using WatchId = uint64_t;

// Thread-compatible.
struct Member {
  MemberState state = MemberState::kMissing;
  Incarnation incarnation = 0;  // of the present life or, while the rank is free, of the last
  JoinRequest request;          // without its parameter space
  Pulse pulse;
  StepProgress progress;
  // Whether `progress` is how far the member was after the group's failure. Otherwise it is from an
  // earlier heartbeat.
  bool progress_is_final = false;
  WatchId watch = 0;
  std::function<void()> wake;
  std::vector<MemberEvent> events;

  bool present() const { return state == MemberState::kJoined || state == MemberState::kActive; }
};

// The ranks under which nobody has joined.
std::vector<Rank> MissingRanks(absl::Span<const Member> members);

// Where the owners of the ranks from `first` on are reached, kMostOwners at most. INVALID_ARGUMENT
// where `first` is not a rank.
absl::StatusOr<OwnerPage> OwnersFrom(Rank first, absl::Span<const Member> members,
                                     Generation generation);

MemberStatus StatusOf(const Member& member, Rank rank, absl::Time now);

// Whether a member of a failed group may have applied a step that others have not, as
// DecideTransition says (common/step_transition.h). What a member has of which there are only
// heartbeats from before the failure is not known, since they are out of date.
bool IsTorn(absl::Span<const Member> members);

}  // namespace optshard

#endif  // OPTSHARD_SERVER_COORDINATOR_MEMBER_H_
