// What others reach of a job in this process over RPC: its shard owners, the coordinator, and its
// checkpoints.
#ifndef OPTSHARD_TESTS_TESTING_SERVED_JOB_H_
#define OPTSHARD_TESTS_TESTING_SERVED_JOB_H_

#include <memory>
#include <string>

#include "common/rpc/server_rpc.h"
#include "server/coordinator/coordinator_service.h"
#include "server/coordinator/saving/coordinator_checkpoints.h"
#include "server/shard/inspection/shard_owner_server.h"
#include "server/shard/inspection/shard_view_registry.h"
#include "tests/testing/local_coordinator.h"

namespace optshard::testing {

// Outlives the ranks, and is outlived by the views and the coordinator. Bound to a thread.
class ServedJob {
 public:
  ServedJob(LocalCoordinator* coordinator, ShardViewRegistry* views);
  ~ServedJob();
  ServedJob(const ServedJob&) = delete;
  ServedJob& operator=(const ServedJob&) = delete;

  const std::string& owner_address() const { return owner_address_; }
  const std::string& coordinator_address() const { return coordinator_address_; }

 private:
  std::unique_ptr<ShardOwnerServer> owners_;
  std::unique_ptr<CoordinatorCheckpoints> checkpoints_;
  CoordinatorService service_;
  ListeningServer coordinator_;
  std::string owner_address_;
  std::string coordinator_address_;
};

}  // namespace optshard::testing

#endif  // OPTSHARD_TESTS_TESTING_SERVED_JOB_H_
