#include "server/shard/host_plane_factory.h"

#include <utility>

namespace optshard {

PlaneFactory MakeHostPlaneFactory(HostPlaneKind kind, const std::string& network,
                                  ReplicaOfRank replica) {
  return [kind, network, replica = std::move(replica)](const PlaneRequest& request) {
    HostPlaneOptions plane;
    static_cast<PlaneRequest&>(plane) = request;
    plane.kind = kind;
    plane.network = network;
    if (replica != nullptr) plane.replica = [&] { return replica(request); };
    return CreateHostPlane(plane);
  };
}

}  // namespace optshard
