// The data plane between CPU hosts, over Gloo's TCP transport. docs/dataplane.md describes it.
//
// Every message goes point to point: contributions to the owner, which sums them in the order of
// the reduction tree; published bytes from the owner to each other rank, straight out of and into
// the callers' memory. Gloo has one thread a plane; another watches the connections, because Gloo
// tells nobody of a connection that breaks in the middle of a message.
#ifndef OPTSHARD_COMMON_DATAPLANE_GLOO_GLOO_PLANE_H_
#define OPTSHARD_COMMON_DATAPLANE_GLOO_GLOO_PLANE_H_

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/dataplane/data_plane.h"
#include "common/dataplane/rendezvous.h"
#include "common/ids.h"
#include "common/plan.h"

namespace optshard {

struct GlooPlaneOptions {
  Rank rank = 0;
  int world_size = 1;
  ReductionTree tree;
  Generation generation = 0;
  Rendezvous* rendezvous = nullptr;  // used by CreateGlooPlane only; not owned

  // A network interface by name, or a numeric address of one; all ranks in one address family.
  std::string network = "lo";

  // Of CreateGlooPlane, in the time of Clock::Monotonic().
  absl::Time deadline = absl::InfiniteFuture();

  // Memory in which an owner receives contributions; at least one bucket's are always received.
  size_t reduce_window_bytes = size_t{64} << 20;
};

// Connects to all other ranks.
//   INVALID_ARGUMENT      rank, tree or network
//   FAILED_PRECONDITION   the shared object with Gloo cannot be loaded
//   UNAVAILABLE           PeerLost: a rank is gone again
//   DEADLINE_EXCEEDED     PeersTimedOut: ranks that did not come
// and what the rendezvous returns.
absl::StatusOr<std::unique_ptr<DataPlane>> CreateGlooPlane(const GlooPlaneOptions& options);

}  // namespace optshard

#endif  // OPTSHARD_COMMON_DATAPLANE_GLOO_GLOO_PLANE_H_
