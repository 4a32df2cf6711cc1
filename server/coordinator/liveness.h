// Whether a member counts as dead, and why: pure functions of what was heard from it and when.
#ifndef OPTSHARD_SERVER_COORDINATOR_LIVENESS_H_
#define OPTSHARD_SERVER_COORDINATOR_LIVENESS_H_

#include <string>

#include "absl/time/time.h"
#include "absl/types/optional.h"

namespace optshard {

struct LivenessOptions {
  // A member that is silent for longer than this counts as dead. This finds stopped processes and
  // unreachable hosts.
  absl::Duration lease = absl::Seconds(5);
  // A member whose event stream breaks and is not resumed within this counts as dead. This finds
  // killed processes. Shortly after a pause of the coordinator the lease holds instead: the pause
  // may have broken the stream, and the member may need some time to connect again.
  absl::Duration session_grace = absl::Milliseconds(300);
};

// How often a member speaks: several times in a lease, so that one message that is lost or late
// kills nobody.
absl::Duration HeartbeatPeriod(absl::Duration lease, int world_size);

// All members together speak at most so often.
constexpr int kMostHeartbeatsPerSecond = 1000;

// What `lease` becomes in a job of so many ranks: it must have room for several heartbeats.
absl::Duration LeaseFor(absl::Duration lease, int world_size);

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
