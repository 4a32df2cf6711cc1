// One TCP connection between every two ranks.
#ifndef OPTSHARD_COMMON_DATAPLANE_GLOO_TCP_PEERS_H_
#define OPTSHARD_COMMON_DATAPLANE_GLOO_TCP_PEERS_H_

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/dataplane/gloo/gloo_plane_options.h"
#include "common/link/unique_fd.h"

namespace optshard {

// Every rank listens on a port of its own, says where through the rendezvous, connects to all lower
// ranks, and accepts those who know the secret that it put beside the address. A rank that has
// connected may say so as late as the deadline; nobody keeps the others waiting. A host that cannot
// be reached is tried again: its link may have just come up. Returns the sockets by rank; at this
// rank's own place there is none.
//   INVALID_ARGUMENT      there is no such network
//   RESOURCE_EXHAUSTED    no descriptors left
//   UNAVAILABLE           PeerLost: a rank is gone again
//   DEADLINE_EXCEEDED     PeersTimedOut: ranks that did not come
// and what the rendezvous returns.
absl::StatusOr<std::vector<UniqueFd>> ConnectTcpPeers(const GlooPlaneOptions& options);

// Whether the group still works, for a rank that has told where it listens: it is the rendezvous
// that knows which rank has failed and will not come. Returns the group's failure, or what the
// rendezvous returns; OK also where it does not answer by the deadline of the options.
absl::Status LookAtGroup(const GlooPlaneOptions& options);

// How often a rank that waits for others looks.
constexpr absl::Duration kGroupLookInterval = absl::Milliseconds(200);

}  // namespace optshard

#endif  // OPTSHARD_COMMON_DATAPLANE_GLOO_TCP_PEERS_H_
