#include "server/shard/host_plane_factory.h"

#include <utility>

namespace optshard {

PlaneFactory MakeHostPlaneFactory(HostPlaneKind kind, const std::string& network,
                                  ReplicaOfRank replica) {
  return [kind, network, replica = std::move(replica)](const PlaneRequest& request) {
    HostPlaneOptions plane;
    plane.rank = request.rank;
    plane.world_size = request.world_size;
    plane.tree = request.tree;
    plane.generation = request.generation;
    plane.rendezvous = request.rendezvous;
    plane.deadline = request.deadline;
    plane.kind = kind;
    plane.network = network;
    plane.layout = request.layout;
    if (replica != nullptr) plane.replica = [&] { return replica(request); };
    return CreateHostPlane(plane);
  };
}

}  // namespace optshard
