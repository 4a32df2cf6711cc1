// What a ShardedOptimizer is given to attach to a shard server.
#ifndef OPTSHARD_TESTS_CLIENT_ATTACHED_OPTIONS_H_
#define OPTSHARD_TESTS_CLIENT_ATTACHED_OPTIONS_H_

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "client/sharded_optimizer_options.h"
#include "tests/server/node/node_rig.h"

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

}  // namespace optshard::testing

#endif  // OPTSHARD_TESTS_CLIENT_ATTACHED_OPTIONS_H_
