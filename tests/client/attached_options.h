// Ranks of a ShardedOptimizer that attach to a shard server.
#ifndef OPTSHARD_TESTS_CLIENT_ATTACHED_OPTIONS_H_
#define OPTSHARD_TESTS_CLIENT_ATTACHED_OPTIONS_H_

#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "client/sharded_optimizer_options.h"
#include "tests/server/node/node_rig.h"
#include "tests/testing/client_ranks.h"

namespace optshard::testing {

inline ShardedOptimizerOptions AttachedTo(const LocalAddress& server, Rank rank, int world_size) {
  ShardedOptimizerOptions options;
  options.attach = absl::StrCat("unix:", server);
  options.rank = rank;
  options.world_size = world_size;
  options.node = "node";
  options.join_timeout = options.step_timeout = absl::Seconds(20);
  return options;
}

inline ShardedOptimizerOptions AttachedTo(const NodeRig& rig, Rank rank) {
  return AttachedTo(rig.address(), rank, rig.TrainerOptions(rank).spec.world_size);
}

// Calls `body` for each rank, in a thread of its own, with options for a rank of a new server, and
// returns what each of them threw.
inline std::vector<absl::Status> RunAttached(
    int world_size, const std::function<void(ShardedOptimizerOptions)>& body) {
  NodeRig rig(world_size);
  std::vector<absl::Status> thrown(world_size);
  rig.OnEveryRank([&](Rank rank) { thrown[rank] = ErrorOf([&] { body(AttachedTo(rig, rank)); }); });
  return thrown;
}

}  // namespace optshard::testing

#endif  // OPTSHARD_TESTS_CLIENT_ATTACHED_OPTIONS_H_
