// A shard owner: keeps the optimizer state of one rank's partition and runs the step for it.
// Domain class: knows no gRPC. server/shard/inspection serves what can be read of it over RPC.
#ifndef OPTSHARD_SERVER_SHARD_SHARD_OWNER_H_
#define OPTSHARD_SERVER_SHARD_SHARD_OWNER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "common/byte_share.h"
#include "common/cancellation.h"
#include "common/clock.h"
#include "common/dataplane/data_plane.h"
#include "common/dataplane/plane_request.h"
#include "common/device_api.h"
#include "common/ids.h"
#include "common/link/memory_budget.h"
#include "common/membership/coordinator_client.h"
#include "common/memory_layout.h"
#include "common/optimizer_spec.h"
#include "common/plan.h"
#include "common/step_info.h"
#include "server/shard/engine/load_input.h"
#include "server/shard/engine/step_input.h"
#include "server/shard/inspection/shard_view.h"
#include "server/shard/snapshot/between_calls.h"
#include "server/shard/snapshot/parameter_memory.h"
#include "server/shard/state/shard_memory.h"
#include "server/shard/state/shard_state.h"
#include "server/update/executor.h"
#include "server/update/trainer_update.h"
#include "server/update/update_rule.h"

namespace optshard {

using PlaneFactory = std::function<absl::StatusOr<std::unique_ptr<DataPlane>>(const PlaneRequest&)>;

// INVALID_ARGUMENT naming the first parameter that an owner on this device cannot step; null: on
// the host.
absl::Status CheckSupported(const ParameterSpace& space, const DeviceApi* device = nullptr);

// Step, RefuseNextStep, SyncParameters, VerifyReplicas and Stop come from one thread at a time; the
// views, failure(), lost() and AbortPlane from any.
class ShardOwner {
 public:
  struct Options {
    std::string job = "optshard";
    std::string optimizer = "default";
    Rank rank = 0;
    OptimizerSpec spec;
    // By param group, or empty. Where one is not null, it steps the group, and its name stands in
    // the spec as the rule's.
    std::vector<std::shared_ptr<TrainerUpdate>> trainer_updates;
    DriverKind driver = DriverKind::kSimd;
    int threads = 0;  // of the update; 0: this rank's share of the CPUs, among those of its node
    std::string node;
    std::string owner_address;
    CoordinatorClient* coordinator = nullptr;  // outlives the owner
    // Ends Start while it waits for the coordinator and the other ranks, with its reason. Outlives
    // the owner; null: none.
    Cancellation* joining = nullptr;
    PlaneFactory plane_factory;
    // Where parameters, gradients and state lie, all of them, and what runs updates there; null: on
    // the host. The planes are of the device, too. Step then returns when the step is enqueued
    // there: what fails afterwards is the next call's error.
    std::shared_ptr<DeviceApi> device;
    // With a device: the state is in memory of the host, which makes the updates. Then Step returns
    // when the step is done, and the executor is one of a host, by default the usual one.
    bool state_on_host = false;
    ExecutorFactory make_executor;
    // Where the state lies, by admission. If it holds the state of an earlier owner of the rank,
    // the job continues from there. Empty: private memory is allocated.
    std::vector<ShardMemory> memory;
    // The state in `memory` is that of no step, and all ranks know: it is kept for its room, all
    // begin with step 0, and each step is refused (DATA_LOSS) until FinishLoading.
    bool memory_is_torn = false;
    // Parameters that were added have not got the job's first values in it: all ranks synchronise
    // before the next step.
    bool memory_lacks_values = false;
    // As JoinRequest::begins_anew.
    absl::optional<BeginsAnew> begins_anew;
    // What snapshots may have for copies, taken at the start. Without it: as much as one of state
    // and parameters needs, taken when the first one is made.
    absl::optional<int64_t> snapshot_memory_bytes;
    // Which it is taken from, and memory for state that is staged; outlives the owner.
    MemoryBudget* budget = &MemoryBudget::Unlimited();
    // What the trainer keeps with the state after a step, for snapshots; null: nothing. Outlives
    // the owner. Called between two calls of this class, from any thread, or within one.
    TrainerBlobAfter blob;
    // With which hyperparameters the earlier owner made the last step, by group, of the first
    // groups or of all; for snapshots and readers until the next one. Empty or null: not known.
    // Called within Start.
    std::function<std::vector<Hyperparameters>(StepNumber finished)> last_hyperparameters;
    // Of param groups that the earlier owner was adding, OptimizerSpec::Digest of the spec with
    // them: where the ranks have gone on with them, Start fails with StaleGeneration, and can be
    // called again with that spec and the memory for them.
    absl::optional<uint64_t> prepared_spec_digest;
    // Makes memory for the state of the last admission of the spec, for AddGroups, before the next
    // plane is made. Null: private memory. Where AddGroups fails and does not break the owner, the
    // memory is used no more.
    std::function<absl::StatusOr<ShardMemory>(const OptimizerSpec& next)> grow_memory;
    // Called by AddGroups before it takes part in others' step, which it refuses.
    std::function<void()> before_refusal;
    // Called once, from any thread, when lost() becomes an error. Must not block.
    std::function<void()> on_lost;
    absl::Duration join_timeout = absl::Seconds(60);
    // How long a failed step waits for the coordinator to say which rank the job lost. It must be
    // longer than a lease.
    absl::Duration attribution_timeout = absl::Seconds(15);
    int timeline_steps = 16;  // how many of the last steps' timelines are kept
    Clock* clock = &Clock::Monotonic();
  };

  // Validates, joins, waits for the plan, connects the plane and allocates the slots. Errors:
  // INVALID_ARGUMENT (options, another device, ranks that disagree), DEADLINE_EXCEEDED naming the
  // ranks that never came, UNAVAILABLE (no coordinator, a rank lost meanwhile), RESOURCE_EXHAUSTED,
  // DATA_LOSS where the ranks go on from states that are torn or of different steps.
  static absl::StatusOr<std::unique_ptr<ShardOwner>> Start(Options options);

  // Unless Stop was called first, this looks to the other ranks like a crash.
  ~ShardOwner();

  // Rank 0's parameter values go to all. Masters take what was changed. Errors as Step; some ranks'
  // Step does not go with others' SyncParameters (INVALID_ARGUMENT). Where there were no values
  // yet, nothing is torn or in doubt because of it: owners that start over the memory do it again.
  // `stream`: as StepInput's.
  absl::Status SyncParameters(absl::Span<const ReplicaTensor> replica,
                              absl::Span<const ReplicaRegion> regions, absl::Duration timeout,
                              void* stream = nullptr);

  // Compares the bits of all ranks' replicas, between steps. RanksDisagree (INVALID_ARGUMENT) where
  // they differ, naming the first such parameter and the ranks that have it otherwise; nothing has
  // changed, and the owner goes on. Otherwise errors as Step, and as there where some ranks step or
  // synchronise; but where gradients travel by messages (kReduce) a step at the same time breaks
  // the owner. A rank that is lost meanwhile tears nothing. `stream`: as StepInput's.
  absl::Status VerifyReplicas(absl::Span<const ReplicaTensor> replica,
                              absl::Span<const ReplicaRegion> regions, absl::Duration timeout,
                              void* stream = nullptr);

  // Gives all ranks the bytes, all ranks together, between steps. INVALID_ARGUMENT on all: some
  // make another call. ABORTED on all: they are at different exchanges of the call, or some are in
  // its FinishLoading; it may be begun again. Else errors as Step, but nothing is ever torn or in
  // doubt because of it.
  absl::Status ShareBytes(const ByteShare& share, absl::Duration timeout);

  // All ranks have staged state and parameters of one step (state()). They take the place of what
  // there is, on all ranks or on none, and the job goes on after that step. All ranks together,
  // like a step: it is in the memory of all before the call, and is torn only as a step is. What
  // was staged is given back, whatever the call returns. With nothing changed on all:
  // INVALID_ARGUMENT, they give different steps, hyperparameters are out of range, memory cannot be
  // used, or some make another call; ABORTED, as ShareBytes, and where a rank has staged nothing.
  // Else errors as Step.
  absl::Status FinishLoading(const LoadInput& load);

  // Likewise of the state alone. The last step stays the last one. A rank that is lost meanwhile
  // tears no step, but where it had begun, the state of others is that of no step (Step and reads
  // have DATA_LOSS) until all have called this once more.
  absl::Status ReplaceState(absl::Duration timeout);

  // One step, all ranks together: prepare, commit, apply and publish (docs/life_of_a_step.md).
  // Refused by all ranks alike: nothing has changed, and the call may be made again.
  //   INVALID_ARGUMENT  hyperparameters out of range or not equal on all ranks; memory that cannot
  //                     be used; some ranks synchronise; kAveraged and a gradient is missing on
  //                     some ranks
  //   UNAVAILABLE       TrainerGone: another rank's owner refused
  // After any other error the owner is broken, and each later call returns the first one.
  //   UNAVAILABLE       PeerLost: not applied by anybody
  //   DEADLINE_EXCEEDED PeersTimedOut: a rank did not come; not applied by anybody. In one pass
  //                     over shared memory, where nothing precedes the vote, it is StepInDoubt
  //   DATA_LOSS         TornStep or StepInDoubt, naming the step and the cause; TornState where an
  //                     update of the trainer's own failed
  //   FAILED_PRECONDITION, INVALID_ARGUMENT  a process of another life of the job takes part, or
  //                     ranks are at different steps
  absl::StatusOr<StepInfo> Step(const StepInput& input);

  // Waits until a device has done the last step, which has begun there: a wait that gives up breaks
  // the owner. OK at once where Step has waited. Errors are the next call's.
  absl::Status Synchronize(absl::Duration timeout);

  // What this rank keeps of its parameters, to be read and replaced between steps, on the thread
  // that steps; valid until the owner's next call. The error that broke the owner, or
  // FAILED_PRECONDITION once it is stopped.
  absl::StatusOr<ShardState*> state();

  // All ranks go on with `spec`, which is the present one with the param groups of one admission
  // more, in the next generation: all of them, or none. Called by all together, between steps;
  // `trainer_updates` as in Options. What was there keeps its owner, its state and its place in
  // memory; shared_replica() has regions for what is added. Added parameters have no values before
  // a SyncParameters, and until then no step follows. `prepared`: not OK where the caller cannot go
  // on, and then no rank does. Errors, with nothing changed:
  //   INVALID_ARGUMENT    the spec or a rule of it; nothing is sent, the others wait for this rank.
  //                       Or, on all ranks, RanksDisagree: they add different groups (the first
  //                       difference is named), or a rank is in a step; its Step returns that, too
  //   DEADLINE_EXCEEDED   PeersTimedOut: these ranks did not come within `timeout`
  //   UNAVAILABLE         no coordinator; or, on all ranks, TrainerGone: another rank's owner
  //   refuses
  //                       the next step (RefuseNextStep)
  //   RESOURCE_EXHAUSTED  a rank, which is named, has too little memory; and other errors of ranks
  //                       that could not build the next generation
  // UNAVAILABLE (a rank or the coordinator is lost) and DEADLINE_EXCEEDED at the end of the call,
  // as others may have gone on already, break the owner as in Step.
  absl::Status AddGroups(const OptimizerSpec& spec,
                         const std::vector<std::shared_ptr<TrainerUpdate>>& trainer_updates,
                         const absl::Status& prepared, absl::Duration timeout);

  // Where this rank's parameters lie from now on. Snapshots read them there, also between calls,
  // and have none before. Any thread.
  void KeepParameters(std::shared_ptr<const ParameterMemory> memory);
  // Copies what open snapshots still need of them, before somebody else writes there. Between two
  // calls.
  void CopyParameters();

  // Takes part in the others' next step, or synchronisation, whenever they come, so that all give
  // it up: with TrainerGone naming this rank, unless another rank has a reason of its own. OK when
  // they have; an error breaks the owner, as in Step. But where another rank has closed its plane
  // in good order, this owner is not broken, and that rank is not lost to it, before it has a step
  // or another call to make. Later refusals return the same error.
  absl::Status RefuseNextStep(absl::string_view how_known);

  // Every pending and later operation of this owner on the data plane fails. Any thread.
  void AbortPlane(const absl::Status& reason);

  // Leaves the job cleanly: waits for the other ranks at most `timeout`, and as long for the
  // coordinator. Idempotent.
  absl::Status Stop(absl::Duration timeout);

  // OK, or the first error.
  absl::Status failure() const;

  // OK, or the loss of a rank that this owner has been told of. An owner that is started over the
  // same memory continues once all ranks are back. Any thread.
  absl::Status lost() const;

  // The last finished step, and how many calls were skipped so far. Bound to the thread that steps.
  StepProgress progress() const;

  // Added parameters have no values, here or at another rank: nothing is done together before all
  // have synchronised. Likewise bound.
  bool lacks_values() const;

  const Plan& plan() const;

  // This rank's replica, by region of the MemoryLayout, in memory that the other ranks of the host
  // read and write in a step: SyncParameters and Step must be given exactly it. Empty where the
  // plane reaches no peer's memory; then the replica may lie anywhere.
  absl::Span<const ReplicaRegion> shared_replica() const;
  std::shared_ptr<const void> shared_replica_memory() const;  // keeps it mapped

  // What can be inspected while training runs. Valid as long as the owner; thread-safe.
  const ShardView& view() const;

 private:
  class Impl;
  explicit ShardOwner(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_SHARD_SHARD_OWNER_H_
