// The data plane between the ranks of one host, in shared memory. docs/dataplane.md describes it.
//
// The ranks of a host can access each other's replicas directly (peer_replicas()); then nothing but
// votes is sent. Reduce and Publish work for any memory, through a mailbox of 2 MiB for each rank.
#ifndef OPTSHARD_COMMON_DATAPLANE_SHM_SHM_PLANE_H_
#define OPTSHARD_COMMON_DATAPLANE_SHM_SHM_PLANE_H_

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/dataplane/data_plane.h"
#include "common/dataplane/plane_request.h"
#include "common/dataplane/shm/replica_segments.h"

namespace optshard {

struct ShmPlaneOptions : PlaneRequest {
  // The ranks of the plane, ascending, this one among them, where they are not all of the job
  // (DataPlane::node); else empty.
  std::vector<Rank> ranks;

  // This rank's own replica. If every rank of the plane gives one, peer_replicas() has all of them,
  // and the plane keeps them mapped.
  std::shared_ptr<const ReplicaSegments> replica;

  // How long a wait polls before it sleeps. Waking a thread takes tens of microseconds; ranks of a
  // small model arrive within less.
  absl::Duration spin = absl::Microseconds(20);
};

// Connects to all other ranks of the plane.
//   INVALID_ARGUMENT      rank, ranks; a peer whose replica has another layout
//   PERMISSION_DENIED     a peer of another user
//   UNAVAILABLE           PeerLost: a rank is gone again
//   DEADLINE_EXCEEDED     PeersTimedOut: ranks that did not come
//   RESOURCE_EXHAUSTED    no memory for the mailbox
// and what the rendezvous returns.
absl::StatusOr<std::unique_ptr<DataPlane>> CreateShmPlane(const ShmPlaneOptions& options);

}  // namespace optshard

#endif  // OPTSHARD_COMMON_DATAPLANE_SHM_SHM_PLANE_H_
