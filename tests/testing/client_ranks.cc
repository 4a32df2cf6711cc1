#include "tests/testing/client_ranks.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "client/status_error.h"
#include "common/dataplane/host_plane.h"
#include "server/shard/host_plane_factory.h"
#include "server/shard/inspection/shard_view_registry.h"
#include "tests/testing/local_coordinator.h"
#include "tests/testing/served_job.h"

namespace optshard::testing {
namespace {

class HubOfEachGeneration {
 public:
  explicit HubOfEachGeneration(const FakeHub::Options& options) : options_(options) {}

  // Valid as long as this.
  ClientSeams seams() {
    ClientSeams seams;
    seams.plane = [this](const PlaneRequest& request, const ReplicaOfRank&) {
      absl::MutexLock lock(&mutex_);
      return hubs_.try_emplace(request.generation, options_).first->second.MakePlane(request.rank);
    };
    return seams;
  }

 private:
  const FakeHub::Options options_;
  absl::Mutex mutex_;
  std::map<Generation, FakeHub> hubs_ ABSL_GUARDED_BY(mutex_);
};

std::vector<absl::Status> RunWith(const ClientSeams& given, int world_size,
                                  const std::function<void(ShardedOptimizerOptions)>& body,
                                  bool serve = false) {
  LocalCoordinator coordinator(world_size);
  ShardViewRegistry views;
  std::unique_ptr<ServedJob> served;
  ClientSeams seams = given;
  if (serve) {
    served = std::make_unique<ServedJob>(&coordinator, &views);
    seams.owner_address = served->owner_address();
    seams.coordinator_address = served->coordinator_address();
  }
  seams.coordinator = &coordinator;
  seams.views = &views;
  std::vector<absl::Status> thrown(world_size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world_size; ++rank) {
    ShardedOptimizerOptions options;
    options.rank = rank;
    options.world_size = world_size;
    options.node = "test";
    options.join_timeout = options.step_timeout = options.close_timeout = absl::Seconds(20);
    threads.emplace_back([&body, &thrown, &seams, rank, options] {
      const ScopedClientSeams scoped(seams);
      thrown[rank] = ErrorOf([&] { body(options); });
    });
  }
  for (std::thread& thread : threads) thread.join();
  return thrown;
}

}  // namespace

std::vector<absl::Status> RunRanks(int world_size,
                                   const std::function<void(ShardedOptimizerOptions)>& body,
                                   FakeHub::Mode mode) {
  FakeHub::Options options;
  options.world_size = world_size;
  options.mode = mode;
  HubOfEachGeneration hubs(options);
  return RunWith(hubs.seams(), world_size, body);
}

std::vector<absl::Status> RunRanks(FakeHub& hub, int world_size,
                                   const std::function<void(ShardedOptimizerOptions)>& body) {
  ClientSeams seams;
  seams.plane = [&hub](const PlaneRequest& request, const ReplicaOfRank&) {
    return hub.MakePlane(request.rank);
  };
  return RunWith(seams, world_size, body);
}

std::vector<absl::Status> RunServedRanks(int world_size,
                                         const std::function<void(ShardedOptimizerOptions)>& body) {
  FakeHub::Options options;
  options.world_size = world_size;
  HubOfEachGeneration hubs(options);
  return RunWith(hubs.seams(), world_size, body, true);
}

std::vector<absl::Status> RunServedRanksWith(
    const ClientSeams& seams, int world_size,
    const std::function<void(ShardedOptimizerOptions)>& body) {
  return RunWith(seams, world_size, body, true);
}

HostRun RunRanksOfOneHost(int world_size, const std::function<void(ShardedOptimizerOptions)>& body,
                          HostPlaneKind kind) {
  std::atomic<int> one_pass_ranks = 0;
  ClientSeams seams;
  seams.plane = [&one_pass_ranks, kind](const PlaneRequest& request, const ReplicaOfRank& replica) {
    auto plane = MakeHostPlaneFactory(kind, "lo", replica)(request);
    if (plane.ok() && (*plane)->peer_replicas() != nullptr) ++one_pass_ranks;
    return plane;
  };
  HostRun run;
  run.thrown = RunWith(seams, world_size, body);
  run.one_pass_ranks = one_pass_ranks;
  return run;
}

NodesRun RunRanksOfSeveralHosts(int world_size,
                                const std::function<void(ShardedOptimizerOptions)>& body) {
  std::atomic<int> ranks_on_nodes = 0;
  ClientSeams seams;
  seams.plane = [&ranks_on_nodes](const PlaneRequest& request, const ReplicaOfRank& replica) {
    HostPlaneOptions options;
    static_cast<PlaneRequest&>(options) = request;
    for (const std::vector<Rank>& node : request.tree.node_groups) {
      if (std::find(node.begin(), node.end(), request.rank) == node.end()) continue;
      options.identity = absl::StrCat("the host of rank ", node.front());
    }
    if (replica != nullptr) options.replica = [&] { return replica(request); };
    auto plane = CreateHostPlane(options);
    if (plane.ok() && (*plane)->node() != nullptr) ++ranks_on_nodes;
    return plane;
  };
  NodesRun run;
  run.thrown = RunWith(seams, world_size, body);
  run.ranks_on_nodes = ranks_on_nodes;
  return run;
}

absl::Status ErrorOf(const std::function<void()>& call) {
  try {
    call();
  } catch (const StatusError& error) {
    return error.status();
  }
  return absl::OkStatus();
}

void ExpectAllOk(const std::vector<absl::Status>& thrown) {
  EXPECT_THAT(thrown, ::testing::Each(absl::OkStatus()));
}

}  // namespace optshard::testing
