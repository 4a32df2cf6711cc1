#include "server/node/hosted_rank.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "common/clock.h"
#include "common/errors.h"
#include "server/update/cpu/numa_nodes.h"

namespace optshard {
namespace {

// Between two refusals, so that ranks that all refuse do not do so without end. The first comes at
// once.
constexpr absl::Duration kFirstRefusalPause = absl::Milliseconds(10);
constexpr absl::Duration kLongestRefusalPause = absl::Milliseconds(100);

absl::Time Now() { return Clock::Monotonic().Now(); }

}  // namespace

HostedRank::HostedRank(Options options)
    : options_(std::move(options)),
      first_(options_.memory->first_request()),
      record_(options_.memory->record()),
      rank_(first_.rank),
      takes_over_(options_.memory->synced()),
      writes_(std::make_shared<AttachedWrites>(rank_)),
      calls_(options_.memory, writes_,
             options_.device.has_value() ? options_.device->device : nullptr, options_.stream,
             Name()),
      place_(&record_) {
  if (takes_over_) {
    away_ = errors::OwnerAway({rank_}, "its shard server has ended, and another one takes over");
  }
  // On the memory node of the thread that has just touched the memory first; where that of an
  // earlier server lies is not known here.
  const NumaNodes& nodes = NumaNodes::OfThisMachine();
  thread_ = std::thread([this, &nodes, node = nodes.Here()] {
    if (!takes_over_) nodes.KeepThisThreadOn(node);
    Run();
  });
}

HostedRank::~HostedRank() {
  Drain();
  AbortPlane(ShuttingDown());
  thread_.join();
}

absl::Status HostedRank::ShuttingDown() {
  return absl::UnavailableError("the shard server is shutting down; nothing has changed");
}

std::string HostedRank::Name() const {
  return absl::StrCat("rank ", rank_, " of optimizer \"", first_.optimizer, "\"");
}

// --- Any thread.

void HostedRank::Wake() {
  control_.Ring();
  if (place_.attachment() != nullptr) place_.attachment()->doorbell.WakeServer();
}

bool HostedRank::Ready() const {
  absl::MutexLock lock(&mutex_);
  return phase_ == Phase::kServing && !draining_ && place_.held() && owner_->failure().ok();
}

bool HostedRank::Useless() const {
  absl::MutexLock lock(&mutex_);
  return phase_ == Phase::kEnded && !options_.memory->synced();
}

void HostedRank::Drain() {
  absl::MutexLock lock(&mutex_);
  draining_ = true;
  Wake();
}

bool HostedRank::WaitEnded(absl::Time deadline) const {
  absl::MutexLock lock(&mutex_);
  const auto ended = [this] {
    mutex_.AssertReaderHeld();
    return phase_ == Phase::kEnded;
  };
  return mutex_.AwaitWithTimeout(absl::Condition(&ended), deadline - Now());
}

void HostedRank::AbortPlane(const absl::Status& reason) {
  absl::MutexLock lock(&mutex_);
  aborted_.Update(reason);
  if (phase_ == Phase::kServing) owner_->AbortPlane(reason);
}

// --- The rank's thread.

// Who is gone comes back; who did not come in time, or what failed on the plane, is told as it is.
absl::Status HostedRank::Away() const {
  const absl::Status lost = owner_->lost();
  const bool gone = errors::IsPeerLost(lost) || errors::IsStaleIncarnation(lost);
  return gone ? errors::OwnerAway(errors::RanksOf(lost), lost.message()) : lost;
}

// Nothing can be done any more before all ranks are back. Of an owner that there is.
bool HostedRank::LostOthers() const {
  return options_.keeper != 0 && options_.memory->synced() && !owner_->lost().ok();
}

void HostedRank::Run() {
  supervisor_ = std::make_unique<OwnerSupervisor<ShardOwner>>(SupervisorOptions());
  while (true) {
    FollowSupervisor();
    const bool draining = draining_;
    if (draining && supervisor_ == nullptr) return;
    std::shared_ptr<Attachment> trainer;
    {
      absl::MutexLock lock(&mutex_);
      trainer = place_.attachment();
    }
    if (draining && owner_ != nullptr) {
      if (!FinishRounds(trainer.get())) End(absl::OkStatus());
      continue;
    }
    // The trainer is refused until the present attempt has ended.
    if (draining) supervisor_->GiveUp();
    if ((trainer != nullptr || owner_ == nullptr) && HandleGrowth()) continue;
    if (trainer != nullptr) {
      ServeTrainer(trainer);
    } else {
      ServeNobody();
    }
  }
}

// While the rank drains. False: it can leave.
bool HostedRank::FinishRounds(Attachment* trainer) {
  HandleGrowth();
  if (trainer != nullptr && trainer->doorbell.WaitForRequest(absl::InfinitePast())) {
    return HandleRequest(*trainer);
  }
  if (!options_.rounds->Enter(rank_)) return false;
  // Others are in this round; they must not wait for one who will not come.
  return owner_->RefuseNextStep("its shard server is shutting down").ok();
}

void HostedRank::ServeTrainer(const std::shared_ptr<Attachment>& trainer) {
  refusal_pause_ = absl::ZeroDuration();
  // What it asked before it ended is done all the same.
  const bool ended = trainer->ended;
  if (trainer->doorbell.WaitForRequest(ended ? absl::InfinitePast() : Now() + kLook)) {
    HandleRequest(*trainer);
  } else if (ended) {
    if (owner_ != nullptr) calls_.DropStaged();
    absl::MutexLock lock(&mutex_);
    place_.Clear(trainer);
  }
}

// Whether there may be another one.
bool HostedRank::HandleRequest(Attachment& trainer) {
  absl::Status valid = calls_.Take(trainer.incarnation, trainer.doorbell);
  const DoorbellRequest& asked = calls_.asked();
  DoorbellReply reply;
  if (owner_ == nullptr) {
    reply.status = valid.ok() ? refusal_ : valid;
    reply.broken = supervisor_ == nullptr;
    trainer.doorbell.Answer(reply);
    return true;
  }
  // As if it had never been asked.
  if (absl::IsCancelled(valid)) {
    reply.status = valid;
    trainer.doorbell.Answer(reply);
    return true;
  }
  // Also while it drains: nobody else is needed.
  if (asked.is_of_state()) {
    reply.status = valid.ok() ? calls_.MoveState(trainer.doorbell) : valid;
    JudgeFailure(&reply.status, &reply.broken);
    trainer.doorbell.Answer(reply);
    return true;
  }
  if (asked.kind == DoorbellRequest::Kind::kLeave) {
    if (valid.ok()) calls_.Leave(trainer.doorbell);
    reply.status = valid;
    trainer.doorbell.Answer(reply);
    return true;
  }
  const bool steps = asked.kind == DoorbellRequest::Kind::kStep;
  const absl::Status complete = CheckComplete(trainer);
  if (!complete.ok()) {
    // The others wait for it: it can be mended.
    reply.status = complete;
    trainer.doorbell.Answer(reply);
    return true;
  }
  if (valid.ok() && asked.gives_hyperparameters()) valid = calls_.UseHyperparameters();
  // Of torn state nobody knows the last call; the owner refuses this one.
  if (valid.ok() && steps && supervisor_->torn().ok()) {
    const CallNumber last = LastCall(owner_->progress());
    // Made when the server before this one ended, which answered nobody.
    if (asked.call == last) {
      reply.step = owner_->progress().finished;
      trainer.doorbell.Answer(reply);
      return true;
    }
    if (asked.call != last + 1) {
      valid = absl::InvalidArgumentError(
          absl::StrFormat("%s has done call %d of step(), after which step %d is finished; its "
                          "trainer asks for call %d, expected call %d or %d",
                          Name(), last, owner_->progress().finished, asked.call, last, last + 1));
    }
  }
  if (valid.ok() && asked.kind == DoorbellRequest::Kind::kFinishLoading &&
      supervisor_->torn().ok() && calls_.HasLoaded()) {
    trainer.doorbell.Answer(reply);
    return true;
  }
  if (valid.ok() && asked.kind != DoorbellRequest::Kind::kSync) {
    reply.status = GiveMissingValues(asked.timeout);
  }
  const bool given = valid.ok() && asked.kind == DoorbellRequest::Kind::kGiveAdded;
  if (!reply.status.ok() || given) {
    JudgeFailure(&reply.status, &reply.broken);
    trainer.doorbell.Answer(reply);
    return true;
  }
  if (!options_.rounds->Enter(rank_)) {
    reply.status = ShuttingDown();
    trainer.doorbell.Answer(reply);
    return false;
  }
  SetBusy();
  if (!valid.ok()) {
    // The others must not wait for it: for them it is as if there were no trainer.
    reply.status = owner_->RefuseNextStep(
        absl::StrCat("what its trainer asked was refused: ", valid.message()));
    if (reply.status.ok()) reply.status = valid;
  } else if (steps) {
    reply = calls_.Step();
    if (errors::IsTornStep(reply.status) && !supervisor_->torn().ok()) {
      reply.status = supervisor_->torn();  // it says which step, and why
    } else if (errors::IsTrainerGone(reply.status) && draining_) {
      reply.status = ShuttingDown();
    }
  } else if (asked.kind == DoorbellRequest::Kind::kVerify) {
    reply.status = calls_.Verify();
  } else if (asked.kind == DoorbellRequest::Kind::kFinishLoading) {
    reply.status = calls_.FinishLoading();
    if (reply.status.ok()) supervisor_->SetMended();
  } else if (asked.kind == DoorbellRequest::Kind::kReplaceState) {
    reply.status = calls_.ReplaceState();
  } else if (asked.kind == DoorbellRequest::Kind::kShareBytes) {
    reply.status = owner_->ShareBytes(asked.share, asked.timeout);
  } else {
    reply.status = calls_.Synchronise(asked.timeout);
  }
  const absl::Status done = calls_.AwaitDevice();
  if (reply.status.ok()) reply.status = done;
  JudgeFailure(&reply.status, &reply.broken);
  Finish();
  trainer.doorbell.Answer(reply);
  return true;
}

// Whether the owner's failure is the end of the rank, or only of what it was asked for.
void HostedRank::JudgeFailure(absl::Status* status, bool* broken) const {
  if (status->ok() || owner_->failure().ok()) return;
  const bool goes_on = !draining_ && LostOthers();
  if (goes_on && !errors::IsTornStep(*status)) *status = Away();
  *broken = !goes_on;
}

void HostedRank::SetBusy() {
  absl::MutexLock lock(&mutex_);
  busy_ = true;
}

void HostedRank::Finish() {
  absl::MutexLock lock(&mutex_);
  busy_ = false;
  progress_ = owner_->progress();
}

// Nobody is there to ask for anything. The other ranks are told when they come to their next step.
void HostedRank::ServeNobody() {
  const uint32_t heard = std::exchange(heard_, control_.Count());
  if (owner_ == nullptr) {
    control_.Wait(heard, Now() + kLook);
    return;
  }
  std::string how;
  bool attaching = false;
  {
    absl::MutexLock lock(&mutex_);
    if (place_.attachment() != nullptr || draining_) return;
    how = place_.how_gone();
    attaching = place_.reserved();
  }
  if (how.empty() && !attaching && Now() >= return_deadline_) {
    how = "it has not come back to its shard server";
  }
  const bool may_come_yet = how.empty();
  // The first values are rank 0's: this needs no trainer of its own, but at rank 0.
  const bool synchronises = !options_.memory->all_synced() && rank_ != 0;
  if (may_come_yet || left_alone_ || !owner_->failure().ok() || first_.spec.world_size == 1 ||
      (synchronises && attaching) || !(options_.memory->synced() || synchronises)) {
    const absl::Time look = Now() + kLook;
    control_.Wait(heard, return_deadline_ > Now() ? std::min(look, return_deadline_) : look);
    return;
  }
  if (synchronises) {
    {
      absl::MutexLock lock(&mutex_);
      // A trainer that has been admitted meanwhile synchronises itself, and nobody does so twice.
      if (place_.attachment() != nullptr) return;
      busy_ = true;
    }
    if (options_.rounds->Enter(rank_)) calls_.Synchronise(absl::Hours(24)).IgnoreError();
    return Finish();
  }
  if (control_.Wait(heard, Now() + refusal_pause_)) return;
  refusal_pause_ = std::clamp(2 * refusal_pause_, kFirstRefusalPause, kLongestRefusalPause);
  if (!options_.rounds->Enter(rank_)) return;
  left_alone_ = !owner_->RefuseNextStep(how).ok();
}

}  // namespace optshard
