// The data plane between CPU hosts, over Gloo's TCP transport. docs/dataplane.md describes it.
//
// Every message goes point to point: contributions to the owner, which sums them in the order of
// the reduction tree, and published bytes from the owner to each other rank. Long messages go
// through Gloo, straight out of and into the callers' memory; short ones are sent and received by
// the threads that wait (small_messages.h). A plane has one thread of Gloo, and one that watches
// the connections, because Gloo does not report a connection that breaks in the middle of a
// message.
#ifndef OPTSHARD_COMMON_DATAPLANE_GLOO_GLOO_PLANE_H_
#define OPTSHARD_COMMON_DATAPLANE_GLOO_GLOO_PLANE_H_

#include <memory>

#include "absl/status/statusor.h"
#include "common/dataplane/data_plane.h"
#include "common/dataplane/gloo/gloo_plane_options.h"

namespace optshard {

// Connects to all other ranks.
//   INVALID_ARGUMENT      rank, tree or network
//   FAILED_PRECONDITION   the shared object with Gloo cannot be loaded
//   UNAVAILABLE           PeerLost: a rank is gone again
//   DEADLINE_EXCEEDED     PeersTimedOut: ranks that did not come
// and what the rendezvous returns.
absl::StatusOr<std::unique_ptr<DataPlane>> CreateGlooPlane(const GlooPlaneOptions& options);

}  // namespace optshard

#endif  // OPTSHARD_COMMON_DATAPLANE_GLOO_GLOO_PLANE_H_
