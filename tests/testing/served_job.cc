#include "tests/testing/served_job.h"

#include "absl/strings/str_cat.h"

namespace optshard::testing {

ServedJob::ServedJob(LocalCoordinator* coordinator, ShardViewRegistry* views)
    : owners_(ShardOwnerServer::Start(ShardOwnerServer::Options(), views).value()),
      checkpoints_(
          CoordinatorCheckpoints::Create(CheckpointOptions(), &coordinator->domain()).value()),
      service_(&coordinator->domain()),
      coordinator_(StartServer("127.0.0.1:0", {&checkpoints_->service(), &service_}).value()),
      owner_address_(absl::StrCat("127.0.0.1:", owners_->port())),
      coordinator_address_(absl::StrCat("127.0.0.1:", coordinator_.port)) {}

ServedJob::~ServedJob() {
  checkpoints_->Shutdown();
  coordinator_.server->Shutdown();
}

}  // namespace optshard::testing
