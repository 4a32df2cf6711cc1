// How staged state takes the place of what the ranks have. Whatever can fail has been done before:
//   1. all ranks vote that they have staged theirs
//   2. each marks its ledger: what it has is that of no step
//   3. once all have, each takes what it staged, and publishes its parameters
//   4. once all have, each ends its mark
// Where it fails before 2., nothing has changed. From there on it is torn as a step is.
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/types/optional.h"
#include "server/shard/engine/step_engine.h"
#include "server/shard/state/shard_ledger.h"

namespace optshard {
namespace {

absl::Status CheckStaged(const StagedState* staged, Replacing what) {
  if (staged != nullptr && staged->what() == what) return absl::OkStatus();
  // By the owner before this one, perhaps.
  return absl::AbortedError(absl::StrFormat(
      "the end of the loading of %s, of which nothing is staged here; repeat the call on all ranks",
      what == Replacing::kAll ? "a checkpoint" : "a state dict"));
}

}  // namespace

absl::Status StepEngine::CheckLoad(const LoadInput& load, const StagedState* staged) {
  if (load.step > ShardLedger::kLastStep) {
    return absl::InvalidArgumentError(
        absl::StrFormat("state of step %d, expected 0 to %d", load.step, ShardLedger::kLastStep));
  }
  absl::Status usable = CheckStaged(staged, Replacing::kAll);
  if (usable.ok()) usable = CheckReplica(load.replica, load.regions);
  return usable.ok() ? UseHyperparameters(load.hyperparameters) : usable;
}

StepEngine::Result StepEngine::FinishLoading(const LoadInput& load, const StagedState* staged) {
  const Call call(this);
  const absl::Time deadline = options_.clock->Now() + load.timeout;
  absl::optional<Result> refused =
      AgreeOnCall(CommitCall::kFinishLoading, load.step, CheckLoad(load, staged),
                  StepOutcome::kNotApplied, deadline);
  if (refused.has_value()) return *std::move(refused);
  ShardStore& store = *options_.store;
  const RightOfWay::Taken taken(store.snapshots().right_of_way());
  store.ledger().SetReplacing(Replacing::kAll);
  if (load.begun) load.begun();
  store.snapshots().BeginParameterWrites();
  const ReplicaMemory replica(load.replica, load.regions, load.stream);
  absl::Status status = Barrier(kLedgersAreMarked, deadline);
  if (status.ok()) status = TakeParameters(*staged, replica, deadline);
  if (status.ok()) status = exchange_->PublishParameters(finished_, replica, deadline);
  if (status.ok()) status = store.Take(staged->store(), deadline);
  if (!status.ok()) return Failed(std::move(status), StepOutcome::kTorn);
  store.SetStep(load.step);
  skipped_ = 0;
  // As after a step: of the state here it is known of which step it is, of the others' not yet.
  StepOutcome unfinished = StepOutcome::kTorn;
  if (load.step > 0) {
    finished_ = load.step - 1;
    unfinished = StepOutcome::kApplied;
    store.ledger().SetProgress({finished_, unfinished, skipped_});
  }
  status = Barrier(kStateIsTaken, deadline);
  if (!status.ok()) return Failed(std::move(status), unfinished);
  finished_ = load.step;
  store.ledger().SetProgress(progress());
  store.ledger().SetReplacing(Replacing::kNothing);
  values_ = ParameterValues::kOfTheJob;
  RememberHyperparameters();
  options_.timeline->DropStep();
  Result result;
  result.info.step = finished_;
  return result;
}

StepEngine::Result StepEngine::ReplaceState(const StagedState* staged, absl::Duration timeout) {
  const Call call(this);
  const absl::Time deadline = options_.clock->Now() + timeout;
  absl::optional<Result> refused =
      AgreeOnCall(CommitCall::kReplaceState, 0, CheckStaged(staged, Replacing::kState),
                  StepOutcome::kNotApplied, deadline);
  if (refused.has_value()) return *std::move(refused);
  ShardStore& store = *options_.store;
  const RightOfWay::Taken taken(store.snapshots().right_of_way());
  store.ledger().SetReplacing(Replacing::kState);
  absl::Status status = Barrier(kLedgersAreMarked, deadline);
  if (status.ok()) status = store.Take(staged->store(), deadline);
  // What reads all ranks meanwhile gets nothing, neither the old state of one and the new one of
  // another.
  if (status.ok()) status = Barrier(kStateIsTaken, deadline);
  // The parameters are still those of the last step.
  if (!status.ok()) return Failed(std::move(status), StepOutcome::kNotApplied);
  store.ledger().SetReplacing(Replacing::kNothing);
  options_.timeline->DropStep();
  Result result;
  result.info.step = finished_;
  return result;
}

// This rank's part, in its own replica.
absl::Status StepEngine::TakeParameters(const StagedState& staged, const ReplicaMemory& replica,
                                        absl::Time deadline) {
  absl::Status ordered = transfer().OrderBehind(replica.stream());
  if (ordered.ok() && options_.device_access != nullptr) {
    ordered = options_.device_access->OrderBehindCopies(transfer().stream());
  }
  if (!ordered.ok()) return ordered;
  for (const StagedState::Values& values : staged.parameters()) {
    const Buffer to = replica.tensor(values.parameter).parameter.From(values.offset_elements);
    absl::Status written = transfer().Write(to.data(), values.from.data(),
                                            values.elements * SizeOf(to.dtype()), deadline);
    if (!written.ok()) return written;
  }
  return transfer().Finish(deadline);
}

}  // namespace optshard
