// The ranks of a ShardedOptimizer as threads of one process, over the fake data plane and a local
// coordinator.
#ifndef OPTSHARD_TESTS_TESTING_CLIENT_RANKS_H_
#define OPTSHARD_TESTS_TESTING_CLIENT_RANKS_H_

#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "client/owner/client_seams.h"
#include "client/sharded_optimizer_options.h"
#include "common/dataplane/host_plane.h"
#include "tests/testing/fake_plane.h"

namespace optshard::testing {

// Each generation of param groups has a hub of its own.
//
// Calls `body` once for each rank, in a thread of its own, with options for it, and returns what
// each of them threw (OK where nothing). Whatever is not a StatusError ends the test. In `body`,
// ScopedClientSeams::Current()->views has the views of the ranks' shard owners.
std::vector<absl::Status> RunRanks(int world_size,
                                   const std::function<void(ShardedOptimizerOptions)>& body,
                                   FakeHub::Mode mode = FakeHub::Mode::kImmediate);

// As above, over a hub that the test keeps, for faults.
std::vector<absl::Status> RunRanks(FakeHub& hub, int world_size,
                                   const std::function<void(ShardedOptimizerOptions)>& body);

// As above, over the data plane that ranks of one host choose, in shared memory.
struct HostRun {
  std::vector<absl::Status> thrown;
  int one_pass_ranks = 0;  // how many of them reach the others' replicas, over all generations
};
HostRun RunRanksOfOneHost(int world_size, const std::function<void(ShardedOptimizerOptions)>& body,
                          HostPlaneKind kind = HostPlaneKind::kAuto);

// As above, as if each node of the job were a host of its own: ranks of one node share memory,
// those of different nodes do not. Wants GlooIsIsolated().
struct NodesRun {
  std::vector<absl::Status> thrown;
  int ranks_on_nodes = 0;  // how many of them have DataPlane::node, over all generations
};
NodesRun RunRanksOfSeveralHosts(int world_size,
                                const std::function<void(ShardedOptimizerOptions)>& body);

// As the first one, and other ranks reach the shard owners over RPC, and all the coordinator's
// checkpoints.
std::vector<absl::Status> RunServedRanks(int world_size,
                                         const std::function<void(ShardedOptimizerOptions)>& body);

// As above, with these seams, of which the plane and the device count.
std::vector<absl::Status> RunServedRanksWith(
    const ClientSeams& seams, int world_size,
    const std::function<void(ShardedOptimizerOptions)>& body);

// What `call` throws, OK where nothing. Whatever is not a StatusError ends the test.
absl::Status ErrorOf(const std::function<void()>& call);

// That no rank has thrown anything.
void ExpectAllOk(const std::vector<absl::Status>& thrown);

}  // namespace optshard::testing

#endif  // OPTSHARD_TESTS_TESTING_CLIENT_RANKS_H_
