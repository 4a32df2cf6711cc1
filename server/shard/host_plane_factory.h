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

// What the other ranks of the host are to reach of this one's replica.
using ReplicaOfRank = std::function<absl::StatusOr<std::shared_ptr<const ReplicaSegments>>(
    const PlaneRequest& request)>;

// Makes planes by CreateHostPlane. `replica` is asked once it is known that all ranks share the
// host; none: no rank reaches another one's.
PlaneFactory MakeHostPlaneFactory(HostPlaneKind kind, const std::string& network,
                                  ReplicaOfRank replica);

}  // namespace optshard

#endif  // OPTSHARD_SERVER_SHARD_HOST_PLANE_FACTORY_H_
