#include "server/node/owner_calls.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/device_wait.h"
#include "common/memory_layout.h"
#include "common/step_info.h"
#include "server/shard/state/shard_state.h"
#include "server/update/group_update.h"

namespace optshard {

namespace {

// What has begun is given that time, however late the votes were. A trainer waits for longer
// (AttachedOwner::Options::answer_slack).
constexpr absl::Duration kDevicePatience = absl::Seconds(10);

absl::Time Now() { return Clock::Monotonic().Now(); }

}  // namespace

absl::Status OwnerCalls::Use(ShardOwner* owner) {
  owner_ = owner;
  const int admissions = memory_->admissions();
  const std::shared_ptr<const OptimizerSpec> spec = memory_->spec(admissions - 1);
  const std::shared_ptr<const ReplicaSegments> replica = memory_->replica(admissions);
  const absl::Span<const ReplicaRegion> shared = owner_->shared_replica();
  if (!replica->has_parameters() && shared.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(
        name_, " shares another rank's parameters, but the data plane shares no memory"));
  }
  absl::StatusOr<std::vector<GroupUpdate>> groups = ValidateGroups(*spec);
  if (!groups.ok()) return groups.status();
  request_.emplace(*spec);
  request_->SetGroups(*std::move(groups));
  request_->Place(MemoryLayout(spec->space),
                  shared.empty() ? replica->regions()
                                 : std::vector<ReplicaRegion>(shared.begin(), shared.end()));
  // Before any value travels: whatever ends now, all do it again.
  if (owner_->lacks_values()) memory_->SetLastUnsynced();
  if (memory_->all_synced()) ShowParameters();
  return absl::OkStatus();
}

absl::Status OwnerCalls::Take(Incarnation trainer, Doorbell& doorbell) {
  absl::Status taken = request_->Take(trainer, doorbell);
  deadline_ = Now() + asked().timeout;
  if (taken.ok()) writes_->Told(asked().writes);
  return taken;
}

absl::Status OwnerCalls::MoveState(const Doorbell& doorbell) {
  const absl::StatusOr<ShardState*> state = owner_->state();
  if (!state.ok()) return state.status();
  const StateRange& range = asked().state;
  switch (asked().kind) {
    case DoorbellRequest::Kind::kReadState:
      return (*state)->Read(range.parameter, range.slot, range.offset_elements,
                            doorbell.state_window().first(range.elements));
    case DoorbellRequest::Kind::kStageState:
      return (*state)->BeginStaging(Replacing::kState);
    case DoorbellRequest::Kind::kStageAll:
      return (*state)->BeginStaging(Replacing::kAll);
    case DoorbellRequest::Kind::kWriteStaged:
      return (*state)->Stage(range.parameter, range.slot, range.offset_elements, asked().values);
    case DoorbellRequest::Kind::kWriteStagedBytes:
      return (*state)->StageBytes(range.parameter, range.slot, range.offset_elements,
                                  asked().bytes);
    case DoorbellRequest::Kind::kDropStaged:
      return (*state)->DropStaged();
    default:
      return (*state)->Write(range.parameter, range.slot, range.offset_elements, asked().values);
  }
}

DoorbellReply OwnerCalls::Step() {
  const StepNumber next = owner_->progress().finished + 1;
  if (asked().has_blob) {
    memory_->record().OfferBlob(next, asked().blob);
  } else {
    memory_->record().OfferNoBlob(next);
  }
  OfferHyperparameters(next);
  StepInput input = request_->Input();
  if (asked().has_blob) {
    input.on_skip = [this, next](StepNumber finished) {
      memory_->record().MoveOffer(next, finished);
    };
  }
  input.stream = stream_.get();
  DoorbellReply reply;
  const absl::StatusOr<StepInfo> info = owner_->Step(input);
  reply.status = info.status();
  if (info.ok()) {
    KeepValues();
    reply.step = info->step;
    reply.prepare = info->prepare;
    reply.commit = info->commit;
    reply.apply = info->apply;
  }
  return reply;
}

// They seldom change: what goes with an earlier step is valid for this one, too.
void OwnerCalls::OfferHyperparameters(StepNumber step) {
  const std::string& given = asked().hyperparameters;
  if (kept_with_ < step && given == kept_hyperparameters_) return;
  memory_->OfferHyperparameters(step, given);
  kept_hyperparameters_ = given;
  kept_with_ = step;
}

absl::Status OwnerCalls::Verify() {
  return owner_->VerifyReplicas(request_->tensors(), request_->regions(), asked().timeout,
                                stream_.get());
}

bool OwnerCalls::HasLoaded() const {
  const StepProgress progress = owner_->progress();
  return asked().load_token != 0 && memory_->record().load_token() == asked().load_token &&
         progress.finished == asked().call && progress.outcome != StepOutcome::kTorn;
}

absl::Status OwnerCalls::FinishLoading() {
  LoadInput load;
  load.step = asked().call;
  load.hyperparameters = request_->hyperparameters();
  load.replica = request_->tensors();
  load.regions = request_->regions();
  load.timeout = asked().timeout;
  load.stream = stream_.get();
  // Before the state is whole again: a server that takes over has the state with what belongs to
  // it, or state that is torn.
  load.begun = [this] {
    memory_->record().SetLoadToken(asked().load_token);
    memory_->record().ReplaceBlobs(asked().call, asked().blob);
    memory_->ReplaceHyperparameters(asked().call, asked().hyperparameters);
    kept_hyperparameters_.clear();
  };
  absl::Status finished = owner_->FinishLoading(load);
  if (finished.ok()) KeepValues();
  return finished;
}

absl::Status OwnerCalls::AwaitDevice() {
  if (device_ == nullptr) return absl::OkStatus();
  return owner_->Synchronize(std::max(deadline_ - Now(), absl::ZeroDuration()) + kDevicePatience);
}

void OwnerCalls::DropStaged() {
  const absl::StatusOr<ShardState*> state = owner_->state();
  if (state.ok()) (*state)->DropStaged().IgnoreError();
}

void OwnerCalls::Leave(const Doorbell& doorbell) {
  // In this order: whatever is opened from now on is copied at once.
  writes_->BeginLeave();
  owner_->CopyParameters();
  absl::Status copied;
  if (device_ != nullptr) {
    copied = AwaitStream(*device_, stream_.get(), deadline_, Clock::Monotonic());
  }
  // It withdraws before it goes on without an answer.
  if (doorbell.IsWithdrawn() || !copied.ok()) {
    writes_->Gone();
  } else {
    writes_->EndLeave();
  }
}

absl::Status OwnerCalls::Synchronise(absl::Duration timeout) {
  absl::Status synced =
      owner_->SyncParameters(request_->tensors(), request_->regions(), timeout, stream_.get());
  if (synced.ok()) KeepValues();
  return synced;
}

// The parameters have the job's values from now on.
void OwnerCalls::KeepValues() {
  if (memory_->all_synced()) return;
  memory_->SetAllSynced();
  ShowParameters();
}

// Once they have the job's values. Their memory is this process's, too, whatever happens to the
// trainer.
void OwnerCalls::ShowParameters() {
  std::shared_ptr<const void> shared = owner_->shared_replica_memory();
  const std::shared_ptr<ParameterMemory> parameters = request_->ParametersKeptBy(
      shared == nullptr ? std::shared_ptr<const void>(memory_) : std::move(shared));
  // What another rank writes to a copy that ranks share is not known here.
  if (!memory_->first_request().spec.share_parameters) parameters->writes = writes_;
  parameters->stream = stream_.get();
  owner_->KeepParameters(parameters);
}

}  // namespace optshard
