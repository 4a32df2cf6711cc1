// Ranks of a ShardedOptimizer that attach to a shard server.
#ifndef OPTSHARD_TESTS_CLIENT_ATTACHED_OPTIONS_H_
#define OPTSHARD_TESTS_CLIENT_ATTACHED_OPTIONS_H_

#include <functional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "client/sharded_optimizer_options.h"
#include "server/shard/inspection/shard_view_registry.h"
#include "tests/server/node/node_rig.h"
#include "tests/testing/client_ranks.h"
#include "tests/testing/local_coordinator.h"
#include "tests/testing/served_job.h"

namespace optshard::testing {

inline ShardedOptimizerOptions AttachedTo(const LocalAddress& server, Rank rank, int world_size) {
  ShardedOptimizerOptions options;
  options.attach = absl::StrCat("unix:", server);
  options.rank = rank;
  options.world_size = world_size;
  options.node = "node";
  options.join_timeout = options.step_timeout = options.close_timeout = absl::Seconds(20);
  return options;
}

inline ShardedOptimizerOptions AttachedTo(const NodeRig& rig, Rank rank) {
  return AttachedTo(rig.address(), rank, rig.TrainerOptions(rank).spec.world_size);
}

// Calls `body` for each rank of the server, in a thread of its own, with options for it, and
// returns what each of them threw.
inline std::vector<absl::Status> RunAttachedTo(
    NodeRig& rig, int world_size, const std::function<void(ShardedOptimizerOptions)>& body) {
  std::vector<absl::Status> thrown(world_size);
  rig.OnEveryRank([&](Rank rank) { thrown[rank] = ErrorOf([&] { body(AttachedTo(rig, rank)); }); });
  return thrown;
}

// At a new server.
inline std::vector<absl::Status> RunAttached(
    int world_size, const std::function<void(ShardedOptimizerOptions)>& body) {
  NodeRig rig(world_size);
  return RunAttachedTo(rig, world_size, body);
}

// At a new server whose owners others reach over RPC, and all the coordinator and its checkpoints.
// `served_as` is told first where, and `configure` changes the server's options.
inline std::vector<absl::Status> RunServedAttached(
    int world_size, const std::function<void(ShardedOptimizerOptions)>& body,
    const std::function<void(const ServedJob&, ShardViewRegistry&)>& served_as = nullptr,
    const std::function<void(NodeOwners::Options*)>& configure = nullptr) {
  LocalCoordinator coordinator(world_size);
  ShardViewRegistry views;
  const ServedJob served(&coordinator, &views);
  if (served_as) served_as(served, views);
  NodeRig::Options options;
  options.world_size = world_size;
  options.owners.coordinator = &coordinator;
  options.owners.coordinator_address = served.coordinator_address();
  options.owners.views = &views;
  options.owners.owner_address = served.owner_address();
  if (configure) configure(&options.owners);
  NodeRig rig(std::move(options));
  return RunAttachedTo(rig, world_size, body);
}

}  // namespace optshard::testing

#endif  // OPTSHARD_TESTS_CLIENT_ATTACHED_OPTIONS_H_
