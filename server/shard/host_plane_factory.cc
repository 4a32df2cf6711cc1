#include "server/shard/host_plane_factory.h"

#include <utility>

#include "common/log.h"

namespace optshard {

PlaneFactory MakeHostPlaneFactory(HostPlaneKind kind, const std::string& network,
                                  ReplicaOfRank replica,
                                  std::function<void(const PlaneNotice&)> on_connected) {
  return [kind, network, replica = std::move(replica),
          on_connected = std::move(on_connected)](const PlaneRequest& request) {
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
      const PlaneNotice notice =
          chosen.NoticeFor(kind == HostPlaneKind::kGloo || replica == nullptr);
      LogNotice(notice, who);
      if (on_connected) on_connected(notice);
    }
    return connected;
  };
}

}  // namespace optshard
