// Whether a member is dead, and how that is known: pure functions of what was heard and when.
#ifndef OPTSHARD_SERVER_COORDINATOR_LIVENESS_H_
#define OPTSHARD_SERVER_COORDINATOR_LIVENESS_H_

#include <string>

#include "absl/time/time.h"
#include "absl/types/optional.h"

namespace optshard {

struct LivenessOptions {
  // Silence longer than this is death: what a stopped process or an unreachable host looks like.
  absl::Duration lease = absl::Seconds(5);
  // A broken event stream that is not resumed within this is death: what a kill looks like. Where
  // the coordinator was paused shortly before, the lease counts instead: the pause may have broken
  // the stream, and a member may need some time to connect again.
  absl::Duration session_grace = absl::Milliseconds(300);
};

// A member's event stream has broken.
struct BrokenSession {
  absl::Time since;
  absl::Duration grace;  // how long the member has to resume it
};

// Signs of life of one member.
struct Pulse {
  absl::Time last_heard;
  absl::optional<BrokenSession> broken_session;
};

struct Death {
  absl::Time when;  // the last moment at which it may have been alive
  std::string how_known;
};

// nullopt while the member counts as alive.
absl::optional<Death> FindDeath(const Pulse& pulse, const LivenessOptions& options, absl::Time now);

}  // namespace optshard

#endif  // OPTSHARD_SERVER_COORDINATOR_LIVENESS_H_
