// Planes between processes on hosts' CPUs, for shard owners.
#ifndef OPTSHARD_SERVER_SHARD_HOST_PLANE_FACTORY_H_
#define OPTSHARD_SERVER_SHARD_HOST_PLANE_FACTORY_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/dataplane/host_plane.h"
#include "common/dataplane/shm/replica_segments.h"
#include "server/shard/shard_owner.h"

namespace optshard {

// Returns what the other ranks of the host may reach of this rank's replica, or null for nothing.
using ReplicaOfRank = std::function<absl::StatusOr<std::shared_ptr<const ReplicaSegments>>(
    const PlaneRequest& request)>;

// Makes planes by CreateHostPlane and logs which one, and why. `replica` is called once all ranks
// are known to share the host and to have a replica to share; null where this rank has none.
PlaneFactory MakeHostPlaneFactory(HostPlaneKind kind, const std::string& network,
                                  ReplicaOfRank replica);

}  // namespace optshard

#endif  // OPTSHARD_SERVER_SHARD_HOST_PLANE_FACTORY_H_
