// What the coordinator knows of one rank of a group.
#ifndef OPTSHARD_SERVER_COORDINATOR_MEMBER_H_
#define OPTSHARD_SERVER_COORDINATOR_MEMBER_H_

#include <cstdint>
#include <functional>
#include <vector>

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
  Incarnation incarnation = 0;  // of the present life, or of the last
  JoinRequest request;          // without its space
  Pulse pulse;
  StepProgress progress;
  // Whether progress is what the failure left behind, not a heartbeat of before.
  bool progress_is_final = false;
  WatchId watch = 0;
  std::function<void()> wake;
  std::vector<MemberEvent> events;

  bool present() const { return state == MemberState::kJoined || state == MemberState::kActive; }
};

MemberStatus StatusOf(const Member& member, Rank rank, absl::Time now);

// Of the members of a failed group: whether one of them may have applied a step that others have
// not. What a heartbeat said before the failure does not count: it was late at any rate. Not torn
// is a step that all have applied, even though no rank could know it of the others (kApplied).
bool IsTorn(absl::Span<const Member> members);

}  // namespace optshard

#endif  // OPTSHARD_SERVER_COORDINATOR_MEMBER_H_
