// The shard owner of this trainer's rank, wherever it runs: embedded in this process
// (embedded_owner.h) or in the shard server of the node (attached_owner.h).
#ifndef OPTSHARD_CLIENT_OWNER_OWNER_LINK_H_
#define OPTSHARD_CLIENT_OWNER_OWNER_LINK_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/byte_share.h"
#include "common/dataplane/peer_replicas.h"
#include "common/ids.h"
#include "common/optimizer_spec.h"
#include "common/step_info.h"
#include "server/shard/engine/step_input.h"
#include "server/shard/inspection/shard_view.h"
#include "server/shard/snapshot/parameter_memory.h"
#include "server/shard/state/state_access.h"
#include "server/update/trainer_update.h"

namespace optshard {

// Bound to the trainer's thread, except where noted. Destroying a link whose Stop was never called
// looks like a death of the trainer.
class OwnerLink {
 public:
  virtual ~OwnerLink() = default;

  // Where this rank's parameters and gradients have to lie, by region of the MemoryLayout. Empty:
  // anywhere.
  virtual absl::Span<const ReplicaRegion> replica() const = 0;
  // Keeps that memory mapped, also beyond the link's life: the trainer's tensors may outlive it.
  virtual std::shared_ptr<const void> replica_memory() const = 0;

  // Whether this trainer succeeds another one. Then that memory holds the values of the last
  // finished step, and they replace the trainer's. Otherwise the trainer puts its own values there.
  // After AddGroups it is about the added groups: a predecessor may have added them already.
  virtual bool resumes() const = 0;
  // The last step that is in the parameters, that of a checkpoint where one was loaded since.
  virtual StepNumber finished_step() const = 0;

  // Gives rank 0's parameter values to all ranks. Masters take what was changed. Not called if the
  // link resumes. Errors as Step.
  virtual absl::Status SyncParameters(absl::Span<const ReplicaTensor> replica,
                                      absl::Span<const ReplicaRegion> regions,
                                      absl::Duration timeout) = 0;

  // Where the rank's parameters lie from now on, for snapshots, and what counts the trainer's
  // writes to them; what is the same as the last time costs nothing.
  virtual void KeepParameters(const std::shared_ptr<const ParameterMemory>& memory) = 0;

  // As ShardOwner::AddGroups; and errors::IsOwnerAway as Step: then the same call completes what
  // may have been begun.
  virtual absl::Status AddGroups(const OptimizerSpec& spec,
                                 const std::vector<std::shared_ptr<TrainerUpdate>>& trainer_updates,
                                 const absl::Status& prepared, absl::Duration timeout) = 0;

  // After AddGroups: SyncParameters, by which the added groups get values on all ranks. OK at once
  // where they have them: who has missed the answer asks again, while the others go on.
  virtual absl::Status GiveAddedValues(absl::Span<const ReplicaTensor> replica,
                                       absl::Span<const ReplicaRegion> regions,
                                       absl::Duration timeout) = 0;

  // As ShardOwner::VerifyReplicas; and errors::IsTrainerGone as Step.
  virtual absl::Status VerifyReplicas(absl::Span<const ReplicaTensor> replica,
                                      absl::Span<const ReplicaRegion> regions,
                                      absl::Duration timeout) = 0;

  // As ShardOwner::Step; and errors::IsTrainerGone (UNAVAILABLE, naming the rank) where another
  // rank's trainer is gone and has no successor yet: nothing has changed, and the call may be made
  // again with the same gradients.
  virtual absl::StatusOr<StepInfo> Step(const StepInput& input) = 0;

  // As ShardOwner::ShareBytes; and errors::IsTrainerGone as Step.
  virtual absl::Status ShareBytes(const ByteShare& share, absl::Duration timeout) = 0;

  // What the rank keeps of its parameters, to be read and replaced between steps; valid until the
  // link's next call. A call of it moves at most kStateWindowElements (common/attach/doorbell.h).
  // Errors as ShardOwner::state. Where the owner is in another process, calls of the access have
  // them, too; each has the timeout, and errors::IsOwnerAway where it may be made again.
  virtual absl::StatusOr<StateAccess*> state(absl::Duration timeout) = 0;

  // What a checkpoint has beside parameters and slots.
  struct LoadedStep {
    StepNumber step = 0;
    absl::Span<const Hyperparameters> hyperparameters;  // by group, of that step
    absl::string_view blob;                             // that is kept with the state (SetBlob)
    uint64_t token = 0;                                 // names this load among all of the rank
  };
  // As ShardOwner::FinishLoading; and errors::IsTrainerGone as Step. The blob that was to go with
  // the next step does not. After errors::IsOwnerAway it may be made again: OK where all ranks have
  // loaded, as the owner that takes over knows by the token; else that error again, or those of a
  // call of which nothing is staged (ABORTED).
  virtual absl::Status FinishLoading(const LoadedStep& loaded,
                                     absl::Span<const ReplicaTensor> replica,
                                     absl::Span<const ReplicaRegion> regions,
                                     absl::Duration timeout) = 0;
  // As ShardOwner::ReplaceState; and errors::IsTrainerGone as Step.
  virtual absl::Status ReplaceState(absl::Duration timeout) = 0;

  // Keeps a few bytes with the state (random state, data cursor): for checkpoints, and for the
  // trainer's successor where the owner outlives the trainer. They go with the next step and are
  // kept once it is finished. INVALID_ARGUMENT beyond 64 KiB.
  virtual absl::Status SetBlob(absl::string_view blob) = 0;
  // The predecessor's last blob; empty if there is none.
  virtual const std::string& blob() const = 0;

  // Where the link is broken, and the state has ended with it: nobody reads this owner any more, so
  // that another link of the rank can be started in this process, in its place (StartOwner).
  // Whether it may.
  virtual bool MakeRoom() = 0;

  // Leaves the job cleanly. Idempotent.
  virtual absl::Status Stop(absl::Duration timeout) = 0;

  // OK, or the error that broke the link for good. Any thread.
  virtual absl::Status failure() const = 0;

  // Bytes of the optimizer state that this rank's owner keeps. Any thread.
  virtual int64_t state_bytes() const = 0;

  // What can be read of the owner; null where it is in another process. Valid until Stop.
  virtual const ShardView* view() const = 0;

  // HOST:PORT of the job's coordinator; empty where a test stands in for it. Any thread.
  virtual const std::string& coordinator_address() const = 0;
  // HOST:PORT of the owner's inspection service. Any thread.
  virtual const std::string& owner_address() const = 0;
  // Those of all ranks, by rank: asks the coordinator (CoordinatorClient::GetOwners). Any thread.
  virtual absl::StatusOr<std::vector<std::string>> owner_addresses(
      absl::Duration timeout) const = 0;
};

}  // namespace optshard

#endif  // OPTSHARD_CLIENT_OWNER_OWNER_LINK_H_
