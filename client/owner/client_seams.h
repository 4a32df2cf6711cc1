// Lets tests run several ranks as threads of one process, over a coordinator and data planes of
// their own.
#ifndef OPTSHARD_CLIENT_OWNER_CLIENT_SEAMS_H_
#define OPTSHARD_CLIENT_OWNER_CLIENT_SEAMS_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "client/owner/owner_link.h"
#include "common/dataplane/data_plane.h"
#include "common/ids.h"
#include "common/membership/coordinator_client.h"
#include "server/device/owner_device.h"
#include "server/shard/host_plane_factory.h"
#include "server/shard/inspection/shard_view_registry.h"
#include "server/shard/shard_owner.h"

namespace optshard {

// With these the optimizers open no socket.
struct ClientSeams {
  CoordinatorClient* coordinator = nullptr;  // outlives the optimizers
  std::string coordinator_address;           // where checkpoints are asked for; empty: nowhere
  ShardViewRegistry* views = nullptr;        // likewise; null: nobody looks into the owners
  std::string owner_address;                 // where `views` is served; empty: nowhere
  // What stands between optimizers and their owners, embedded or attached; null: nothing.
  std::function<std::unique_ptr<OwnerLink>(std::unique_ptr<OwnerLink> owner)> link;
  // `replica` is what the rank has for the others to reach; null for nothing.
  std::function<absl::StatusOr<std::unique_ptr<DataPlane>>(const PlaneRequest& request,
                                                           const ReplicaOfRank& replica)>
      plane;
  // Instead of OpenOwnerDevice; its make_plane is not used. Null: no owner is on a device.
  std::function<absl::StatusOr<OwnerDevice>(const std::string& name, Rank rank)> device;
};

// While it lives, owners that its thread starts use these seams: attached ones `link` and `device`.
class ScopedClientSeams {
 public:
  explicit ScopedClientSeams(const ClientSeams& seams);  // which outlive it
  ~ScopedClientSeams();
  ScopedClientSeams(const ScopedClientSeams&) = delete;
  ScopedClientSeams& operator=(const ScopedClientSeams&) = delete;

  // The seams of this thread; null where there are none.
  static const ClientSeams* Current();
};

}  // namespace optshard

#endif  // OPTSHARD_CLIENT_OWNER_CLIENT_SEAMS_H_
