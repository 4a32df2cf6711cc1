// The data plane between CPU hosts, over Gloo's TCP transport. docs/dataplane.md describes it.
//
// Every message goes point to point: contributions to the owner, which sums them in the order of
// the reduction tree; published bytes from the owner to each other rank, straight out of and into
// the callers' memory. Gloo has one thread a plane; another watches the connections, because Gloo
// tells nobody of a connection that breaks in the middle of a message.
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
