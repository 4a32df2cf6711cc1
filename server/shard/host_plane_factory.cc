#include "server/shard/host_plane_factory.h"

#include <utility>

#include "common/log.h"

namespace optshard {

PlaneFactory MakeHostPlaneFactory(HostPlaneKind kind, const std::string& network,
                                  ReplicaOfRank replica) {
  return [kind, network, replica = std::move(replica)](const PlaneRequest& request) {
    HostPlaneOptions plane;
    static_cast<PlaneRequest&>(plane) = request;
    plane.kind = kind;
    plane.network = network;
    if (replica != nullptr) plane.replica = [&] { return replica(request); };
    HostPlaneChoice chosen;
    plane.chosen = &chosen;
    absl::StatusOr<std::unique_ptr<DataPlane>> connected = CreateHostPlane(plane);
    if (connected.ok()) {
      LogContext who;
      who.role = "owner";
      who.rank = request.rank;
      who.generation = request.generation;
      Log(LogLevel::kInfo, who, "%s", chosen.Text());
    }
    return connected;
  };
}

}  // namespace optshard
