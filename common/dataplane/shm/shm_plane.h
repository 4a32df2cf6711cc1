// The data plane between the ranks of one host, in shared memory. docs/dataplane.md describes it.
//
// Co-located ranks see each other's replicas directly (peer_replicas()); with those nothing needs
// to be sent but votes. Reduce and Publish work for any memory, through a mailbox of 2 MiB a rank.
#ifndef OPTSHARD_COMMON_DATAPLANE_SHM_SHM_PLANE_H_
#define OPTSHARD_COMMON_DATAPLANE_SHM_SHM_PLANE_H_

#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/dataplane/data_plane.h"
#include "common/dataplane/rendezvous.h"
#include "common/dataplane/shm/replica_segments.h"
#include "common/ids.h"
#include "common/memory_layout.h"
#include "common/plan.h"

namespace optshard {

struct ShmPlaneOptions {
  Rank rank = 0;
  int world_size = 1;
  ReductionTree tree;
  Generation generation = 0;
  Rendezvous* rendezvous = nullptr;  // used by CreateShmPlane only; not owned

  // This rank's own replica, where all ranks give theirs: then peer_replicas() has all of them. The
  // plane keeps them mapped. `layout` is theirs.
  std::shared_ptr<const ReplicaSegments> replica;
  const MemoryLayout* layout = nullptr;  // used by CreateShmPlane only; not owned

  // Of CreateShmPlane, in the time of Clock::Monotonic().
  absl::Time deadline = absl::InfiniteFuture();

  // How long a wait looks before it sleeps. Waking a thread takes tens of microseconds; ranks of a
  // small model arrive within less.
  absl::Duration spin = absl::Microseconds(20);
};

// Connects to all other ranks.
//   INVALID_ARGUMENT      rank, tree; a peer whose replica has another layout
//   PERMISSION_DENIED     a peer of another user
//   UNAVAILABLE           PeerLost: a rank is gone again
//   DEADLINE_EXCEEDED     PeersTimedOut: ranks that did not come
//   RESOURCE_EXHAUSTED    no memory for the mailbox
// and what the rendezvous returns.
absl::StatusOr<std::unique_ptr<DataPlane>> CreateShmPlane(const ShmPlaneOptions& options);

}  // namespace optshard

#endif  // OPTSHARD_COMMON_DATAPLANE_SHM_SHM_PLANE_H_
