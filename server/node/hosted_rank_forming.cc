// How a hosted rank gets its owner, and gives back one that is of no use any more.
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/errors.h"
#include "common/hyperparameter_bytes.h"
#include "common/log.h"
#include "server/node/hosted_rank.h"

namespace optshard {
namespace {

// For trainers to come back to a server that has taken over, before the others are told.
constexpr absl::Duration kReturnTime = absl::Milliseconds(1500);
constexpr absl::Duration kLeaveTimeout = absl::Seconds(2);

absl::Time Now() { return Clock::Monotonic().Now(); }

}  // namespace

// --- The supervisor's thread.

OwnerSupervisor<ShardOwner>::Options HostedRank::SupervisorOptions() {
  OwnerSupervisor<ShardOwner>::Options supervisor;
  supervisor.start = [this](bool torn) { return StartOwner(torn); };
  supervisor.has_state = [this] { return options_.keeper != 0 && options_.memory->synced(); };
  supervisor.on_done = [this] {
    absl::MutexLock lock(&mutex_);
    Wake();
  };
  supervisor.who.role = "server";
  supervisor.who.job = first_.job;
  supervisor.who.rank = rank_;
  supervisor.leave_timeout = kLeaveTimeout;
  return supervisor;
}

absl::StatusOr<std::unique_ptr<ShardOwner>> HostedRank::StartOwner(bool torn) {
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
  if (options_.device.has_value()) {
    owner.device = options_.device->device;
    owner.state_on_host = first_.state_on_host;
    if (!owner.state_on_host) owner.make_executor = options_.device->make_executor;
  }
  owner.memory = memory.Shard();
  owner.memory_is_torn = torn;
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
    return StartOwner(torn);
  }
  // The ranks go on without them.
  if (started.ok() && prepared != nullptr) options_.drop_prepared();
  return started;
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

// --- The rank's thread.

// Takes the owner that has been formed, gives back one that is of no use any more, and ends where
// none can be formed.
void HostedRank::FollowSupervisor() {
  if (owner_ != nullptr) {
    if (!draining_ && LostOthers()) LoseOwner();
    return;
  }
  if (supervisor_ == nullptr || !supervisor_->done()) return;
  const absl::StatusOr<ShardOwner*> formed = supervisor_->owner();
  absl::Status taken = formed.status();
  if (formed.ok()) {
    owner_ = *formed;
    taken = TakeOwner();
  } else if (draining_) {
    taken = ShuttingDown();
  }
  if (taken.ok()) return BeginServing();
  End(taken);
}

void HostedRank::BeginServing() {
  options_.show(&owner_->view());
  absl::MutexLock lock(&mutex_);
  phase_ = Phase::kServing;
  progress_ = owner_->progress();
  if (!aborted_.ok()) owner_->AbortPlane(aborted_);
  if (takes_over_ && return_deadline_ == absl::InfiniteFuture()) {
    return_deadline_ = Now() + kReturnTime;
  }
}

// Until there is another one the trainer is refused, as often as it asks.
void HostedRank::LoseOwner() {
  refusal_ = Away();
  {
    absl::MutexLock lock(&mutex_);
    phase_ = Phase::kStarting;
    away_ = refusal_;
    owner_ = nullptr;
  }
  options_.show(nullptr);
  supervisor_->FormAgain();
}

// OK: in good order; where others do not leave too, no longer than the timeout.
void HostedRank::End(const absl::Status& failure) {
  if (owner_ != nullptr) {
    owner_->Stop(kLeaveTimeout).IgnoreError();
    options_.show(nullptr);
  }
  refusal_ = failure;
  {
    absl::MutexLock lock(&mutex_);
    start_status_ = failure;
    phase_ = Phase::kEnded;
  }
  owner_ = nullptr;
  supervisor_ = nullptr;
}

// Its rounds are those of its generation.
absl::Status HostedRank::TakeOwner() {
  left_alone_ = false;
  absl::Status usable = calls_.Use(owner_);
  if (usable.ok()) options_.rounds->Begin(rank_, owner_->plan().generation);
  return usable;
}

}  // namespace optshard
