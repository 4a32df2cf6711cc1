// All of a coordinator that has to do with checkpoints: the saves, their service, the schedule.
#ifndef OPTSHARD_SERVER_COORDINATOR_SAVING_COORDINATOR_CHECKPOINTS_H_
#define OPTSHARD_SERVER_COORDINATOR_SAVING_COORDINATOR_CHECKPOINTS_H_

#include <map>
#include <memory>
#include <set>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/checkpoint/posix_file_system.h"
#include "server/coordinator/coordinator.h"
#include "server/coordinator/saving/checkpoint_options.h"
#include "server/coordinator/saving/checkpoint_saves.h"
#include "server/coordinator/saving/checkpoint_schedule.h"
#include "server/coordinator/saving/checkpoints_service.h"
#include "server/coordinator/saving/saving_owners_rpc.h"

namespace optshard {

// Thread-safe, but for Tick, which one thread calls.
class CoordinatorCheckpoints {
 public:
  // `coordinator` outlives it. INVALID_ARGUMENT where the directory is not absolute or has "..", or
  // is missing and the other options need one.
  static absl::StatusOr<std::unique_ptr<CoordinatorCheckpoints>> Create(
      const CheckpointOptions& options, Coordinator* coordinator);

  grpc::Service& service() { return service_; }

  // Begins the saves that are due. Looks once a second.
  void Tick();

  // Gives up what is under way, and waits for it. Idempotent.
  void Shutdown() { saves_.Shutdown(); }

 private:
  CoordinatorCheckpoints(const CheckpointOptions& options, Coordinator* coordinator);

  CheckpointSaves::Options SavesOptions(const CheckpointOptions& options);
  // At one optimizer, which has finished this step.
  void Look(const std::string& optimizer, StepNumber finished, absl::Time now);

  Coordinator& coordinator_;
  const CheckpointOptions options_;
  PosixFileSystem files_;
  SavingOwnersRpc owners_;
  CheckpointSaves saves_;
  CheckpointsService service_;
  CheckpointSchedule schedule_;
  std::set<std::string> counted_;  // optimizers that the schedule knows
  // Those that wait for their step, or have ended since, by optimizer.
  std::map<std::string, std::shared_ptr<CheckpointSave>> at_steps_;
  absl::Time next_look_ = absl::InfinitePast();
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_COORDINATOR_SAVING_COORDINATOR_CHECKPOINTS_H_
