// Planes between processes on hosts' CPUs, for shard owners.
#ifndef OPTSHARD_SERVER_SHARD_HOST_PLANE_FACTORY_H_
#define OPTSHARD_SERVER_SHARD_HOST_PLANE_FACTORY_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/dataplane/host_plane.h"
#include "common/dataplane/plane_notice.h"
#include "common/dataplane/shm/replica_segments.h"
#include "server/shard/shard_owner.h"

namespace optshard {

// Returns what the other ranks of the host may reach of this rank's replica, or null for nothing.
using ReplicaOfRank = std::function<absl::StatusOr<std::shared_ptr<const ReplicaSegments>>(
    const PlaneRequest& request)>;

// Makes planes by CreateHostPlane, and logs which one and why: as a warning where a faster one is
// possible, unless this rank was told to do without it by `kind` or `replica`. `replica` is called
// once all ranks are known to share the host and to have a replica to share; null where this rank
// has none. `on_connected`, if any, is called with what is logged.
PlaneFactory MakeHostPlaneFactory(HostPlaneKind kind, const std::string& network,
                                  ReplicaOfRank replica,
                                  std::function<void(const PlaneNotice&)> on_connected = nullptr);

}  // namespace optshard

#endif  // OPTSHARD_SERVER_SHARD_HOST_PLANE_FACTORY_H_
