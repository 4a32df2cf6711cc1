// How a hosted rank becomes part of its job, and does so again when the job has lost a rank: the
// rank's thread.
#include <algorithm>
#include <atomic>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/errors.h"
#include "common/hyperparameter_bytes.h"
#include "common/log.h"
#include "server/node/hosted_rank.h"
#include "server/update/group_update.h"

namespace optshard {
namespace {

// For trainers to come back to a server that has taken over, before the others are told.
constexpr absl::Duration kReturnTime = absl::Milliseconds(1500);
// Between two attempts to form the job again.
constexpr absl::Duration kFirstFormPause = absl::Milliseconds(100);
constexpr absl::Duration kLongestFormPause = absl::Seconds(2);
constexpr absl::Duration kLeaveTimeout = absl::Seconds(2);

absl::Time Now() { return Clock::Monotonic().Now(); }

// Whether another attempt to start the owner would fail alike: the states do not fit together, or
// this rank's place is no more.
bool IsFinal(const absl::Status& failure) {
  if (absl::IsFailedPrecondition(failure)) {
    return !errors::IsStaleIncarnation(failure) && !errors::IsStaleGeneration(failure);
  }
  return absl::IsDataLoss(failure) || absl::IsInvalidArgument(failure);
}

}  // namespace

void HostedRank::Run() {
  absl::Status formed = Form();
  if (formed.ok()) formed = TakeOwner();
  while (formed.ok()) {
    options_.show(&owner_->view());
    {
      absl::MutexLock lock(&mutex_);
      phase_ = Phase::kServing;
      progress_ = owner_->progress();
      if (!aborted_.ok()) owner_->AbortPlane(aborted_);
      if (takes_over_ && return_deadline_ == absl::InfiniteFuture()) {
        return_deadline_ = Now() + kReturnTime;
      }
    }
    if (Serve() == Next::kStop) break;
    formed = FormAgain();
    if (formed.ok()) formed = TakeOwner();
  }
  if (owner_ != nullptr) {
    // In good order; where others do not leave too, no longer than this.
    owner_->Stop(kLeaveTimeout).IgnoreError();
    options_.show(nullptr);
  }
  {
    absl::MutexLock lock(&mutex_);
    start_status_ = formed;
    phase_ = Phase::kEnded;
  }
  owner_.reset();
  while (!formed.ok() && !draining_) RefuseTrainer(formed, true);
}

// The owner, when all ranks are there. Of a rank that has state: however long that takes.
absl::Status HostedRank::Form() {
  absl::Duration pause = kFirstFormPause;
  while (true) {
    absl::Status started = StartOwner();
    const bool has_state = options_.keeper != 0 && options_.memory->synced();
    // All ranks have been told so, and all come back without a step.
    const bool torn = errors::IsTornStep(started);
    if (started.ok() || !has_state || draining_ || (IsFinal(started) && !torn)) return started;
    if (torn && torn_.ok()) {
      torn_ = errors::WithContext(started, "no step before a checkpoint is loaded");
    }
    LogContext who;
    who.role = "server";
    who.job = first_.job;
    who.rank = rank_;
    Log(LogLevel::kWarning, who, "cannot go on %s: %s",
        torn ? "before a checkpoint is loaded" : "yet", started.message());
    control_.Wait(control_.Count(), Now() + pause);
    pause = std::min(2 * pause, kLongestFormPause);
  }
}

// Meanwhile the trainer is told, as often as it asks.
absl::Status HostedRank::FormAgain() {
  const absl::Status away = Away();
  std::unique_ptr<ShardOwner> broken;
  {
    absl::MutexLock lock(&mutex_);
    phase_ = Phase::kStarting;
    away_ = away;
    broken = std::move(owner_);
  }
  options_.show(nullptr);
  broken->Stop(kLeaveTimeout).IgnoreError();
  broken.reset();

  absl::Status formed;
  std::atomic<bool> done{false};
  std::thread forming([this, &formed, &done] {
    formed = Form();
    done = true;
    absl::MutexLock lock(&mutex_);
    Wake();
  });
  while (!done) RefuseTrainer(away, false);
  forming.join();
  return formed;
}

absl::Status HostedRank::StartOwner() {
  RankMemory& memory = *options_.memory;
  const std::shared_ptr<const OptimizerSpec> prepared = memory.prepared_spec();
  ShardOwner::Options owner;
  owner.job = first_.job;
  owner.optimizer = first_.optimizer;
  owner.rank = rank_;
  owner.spec = *memory.spec(memory.admissions() - 1);
  owner.threads = first_.threads;
  owner.node = first_.node;
  owner.owner_address = options_.owner_address;
  owner.coordinator = options_.coordinator;
  owner.joining = options_.joining;
  owner.join_timeout = first_.join_timeout;
  owner.plane_factory = options_.plane_factory;
  owner.memory = memory.Shard();
  owner.memory_is_torn = !torn_.ok();
  owner.memory_lacks_values = memory.synced() && !memory.all_synced();
  owner.snapshot_memory_bytes = options_.snapshot_memory_bytes;
  owner.budget = options_.budget;
  owner.blob = [this](StepNumber finished) { return record_.Blob(finished).bytes; };
  owner.last_hyperparameters = [this](StepNumber finished) {
    return LastHyperparameters(finished);
  };
  if (prepared != nullptr) owner.prepared_spec_digest = prepared->Digest();
  owner.grow_memory = [this](const OptimizerSpec& next) -> absl::StatusOr<ShardMemory> {
    AttachRequest grown = first_;
    grown.spec = next;
    grown.layout_digest = MemoryLayout(next.space).Digest();
    absl::Status made = options_.prepare_memory(grown);
    if (!made.ok()) return made;
    return *options_.memory->PreparedShard();
  };
  owner.before_refusal = [this] { options_.rounds->Enter(rank_); };
  owner.on_lost = [this] {
    absl::MutexLock lock(&mutex_);
    Wake();
  };
  absl::StatusOr<std::unique_ptr<ShardOwner>> started = ShardOwner::Start(std::move(owner));
  if (prepared != nullptr && errors::IsStaleGeneration(started.status())) {
    // The ranks have gone on with the groups that this one was adding when it failed.
    memory.TakePrepared();
    return StartOwner();
  }
  if (!started.ok()) return started.status();
  // The ranks go on without them.
  if (prepared != nullptr) options_.drop_prepared();
  owner_ = *std::move(started);
  return absl::OkStatus();
}

std::vector<Hyperparameters> HostedRank::LastHyperparameters(StepNumber finished) const {
  const std::string kept = options_.memory->HyperparametersAfter(finished);
  if (kept.empty()) return {};
  absl::StatusOr<std::vector<Hyperparameters>> last = DecodeHyperparameters(kept);
  if (last.ok()) return *std::move(last);
  Log(LogLevel::kWarning, LogContext(), "%s: the hyperparameters that were kept of step %d: %s",
      Name(), finished, last.status().message());
  return {};
}

// Requests are of what the owner has, and its rounds of its generation. The owner looks for the
// rank's tensors where the other ranks do.
absl::Status HostedRank::TakeOwner() {
  const int admissions = options_.memory->admissions();
  const std::shared_ptr<const OptimizerSpec> spec = options_.memory->spec(admissions - 1);
  const std::shared_ptr<const ReplicaSegments> replica = this->replica(admissions);
  const absl::Span<const ReplicaRegion> shared = owner_->shared_replica();
  if (!replica->has_parameters() && shared.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(
        Name(), " shares another rank's parameters, but the data plane shares no memory"));
  }
  absl::StatusOr<std::vector<GroupUpdate>> groups = ValidateGroups(*spec);
  if (!groups.ok()) return groups.status();
  request_.emplace(*spec);
  request_->SetGroups(*std::move(groups));
  request_->Place(MemoryLayout(spec->space),
                  shared.empty() ? replica->regions()
                                 : std::vector<ReplicaRegion>(shared.begin(), shared.end()));
  // Before any value travels: whatever ends now, all do it again.
  if (owner_->lacks_values()) options_.memory->SetLastUnsynced();
  if (options_.memory->all_synced()) ShowParameters();
  options_.rounds->Begin(rank_, owner_->plan().generation);
  return absl::OkStatus();
}

// Once they have the job's values. Their memory is this process's, too, whatever happens to the
// trainer.
void HostedRank::ShowParameters() {
  std::shared_ptr<const void> shared = owner_->shared_replica_memory();
  owner_->KeepParameters(request_->ParametersKeptBy(
      shared == nullptr ? std::shared_ptr<const void>(options_.memory) : std::move(shared)));
}

// There is no owner that could do what the trainer asks for.
void HostedRank::RefuseTrainer(const absl::Status& reason, bool broken) {
  RefuseGrowth(reason, broken);
  const uint32_t heard = std::exchange(heard_, control_.Count());
  std::shared_ptr<Attachment> trainer;
  {
    absl::MutexLock lock(&mutex_);
    trainer = place_.attachment();
  }
  if (trainer == nullptr) {
    control_.Wait(heard, Now() + kLook);
    return;
  }
  const bool ended = trainer->ended;
  if (trainer->doorbell.WaitForRequest(ended ? absl::InfinitePast() : Now() + kLook)) {
    DoorbellReply reply;
    reply.status = request_->Take(trainer->incarnation, trainer->doorbell);
    if (reply.status.ok()) reply.status = reason;
    reply.broken = broken;
    trainer->doorbell.Answer(reply);
  } else if (ended) {
    absl::MutexLock lock(&mutex_);
    place_.Clear(trainer);
  }
}

}  // namespace optshard
