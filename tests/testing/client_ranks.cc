#include "tests/testing/client_ranks.h"

#include <memory>
#include <thread>

#include "client/owner/client_seams.h"
#include "client/status_error.h"
#include "tests/testing/local_coordinator.h"

namespace optshard::testing {

std::vector<absl::Status> RunRanks(int world_size,
                                   const std::function<void(ShardedOptimizerOptions)>& body,
                                   FakeHub::Mode mode) {
  FakeHub::Options options;
  options.world_size = world_size;
  options.mode = mode;
  FakeHub hub(options);
  return RunRanks(hub, world_size, body);
}

std::vector<absl::Status> RunRanks(FakeHub& hub, int world_size,
                                   const std::function<void(ShardedOptimizerOptions)>& body) {
  LocalCoordinator coordinator(world_size);
  auto seams = std::make_shared<ClientSeams>();
  seams->coordinator = &coordinator;
  seams->plane = [&hub](const PlaneRequest& request) { return hub.MakePlane(request.rank); };
  std::vector<absl::Status> thrown(world_size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world_size; ++rank) {
    ShardedOptimizerOptions options;
    options.rank = rank;
    options.world_size = world_size;
    options.node = "test";
    options.seams = seams;
    options.join_timeout = absl::Seconds(20);
    options.step_timeout = absl::Seconds(20);
    threads.emplace_back([&body, &thrown, rank, options] {
      try {
        body(options);
      } catch (const StatusError& error) {
        thrown[rank] = error.status();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return thrown;
}

}  // namespace optshard::testing
