// Where a ShardedOptimizer can be given another coordinator and another data plane: tests run
// several ranks as threads of one process over fakes.
#ifndef OPTSHARD_CLIENT_OWNER_CLIENT_SEAMS_H_
#define OPTSHARD_CLIENT_OWNER_CLIENT_SEAMS_H_

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "common/dataplane/data_plane.h"
#include "common/membership/coordinator_client.h"
#include "server/shard/host_plane_factory.h"
#include "server/shard/shard_owner.h"

namespace optshard {

// With these no socket is opened: there is no shard owner service either.
struct ClientSeams {
  CoordinatorClient* coordinator = nullptr;  // outlives the optimizer
  // `replica` is what the rank has for the others to reach; null for nothing.
  std::function<absl::StatusOr<std::unique_ptr<DataPlane>>(const PlaneRequest& request,
                                                           const ReplicaOfRank& replica)>
      plane;
};

}  // namespace optshard

#endif  // OPTSHARD_CLIENT_OWNER_CLIENT_SEAMS_H_
