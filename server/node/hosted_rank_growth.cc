// How param groups are added to a hosted rank: its trainer asks over its socket, and the rank's
// thread does it.
#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/errors.h"
#include "common/memory_layout.h"
#include "server/node/doorbell_shape.h"
#include "server/node/hosted_rank.h"

namespace optshard {
namespace {

constexpr absl::Duration kHereLook = absl::Milliseconds(50);
constexpr absl::Duration kLongestTimeout = absl::Hours(24);  // as at the doorbell

}  // namespace

// --- Any thread.

AddGroupsReply HostedRank::AddGroups(const std::shared_ptr<Attachment>& attachment,
                                     const AddGroupsRequest& request,
                                     const std::function<bool()>& here) {
  const auto call = std::make_shared<GrowthCall>();
  call->trainer = attachment;
  call->asked = request;
  {
    absl::MutexLock lock(&mutex_);
    growth_ = call;
    Wake();
  }
  while (true) {
    const bool still_here = here();
    absl::MutexLock lock(&mutex_);
    const auto settled = [this, &call] {
      mutex_.AssertReaderHeld();
      return call->reply.has_value() || phase_ == Phase::kEnded;
    };
    const bool done = mutex_.AwaitWithTimeout(absl::Condition(&settled),
                                              still_here ? kHereLook : absl::ZeroDuration());
    if (call->reply.has_value()) return *call->reply;
    if (!done && still_here) continue;
    if (growth_ == call) growth_ = nullptr;
    AddGroupsReply reply;
    reply.status = ShuttingDown();
    return reply;
  }
}

// --- The rank's thread.

std::shared_ptr<HostedRank::GrowthCall> HostedRank::TakeGrowth() {
  absl::MutexLock lock(&mutex_);
  return std::exchange(growth_, nullptr);
}

// Whether one was asked for.
bool HostedRank::HandleGrowth() {
  const std::shared_ptr<GrowthCall> call = TakeGrowth();
  if (call == nullptr) return false;
  AddGroupsReply reply;
  if (owner_ == nullptr) {
    reply.status = refusal_;
    reply.broken = supervisor_ == nullptr;
  } else if (draining_) {
    reply.status = ShuttingDown();
  } else {
    SetBusy();
    reply = Grow(*call->trainer, call->asked);
    JudgeFailure(&reply.status, &reply.broken);
    Finish();
  }
  absl::MutexLock lock(&mutex_);
  call->reply = std::move(reply);
  return true;
}

// The admission after the trainer's last one: the rank may have it already.
AddGroupsReply HostedRank::Grow(Attachment& trainer, const AddGroupsRequest& asked) {
  const RankMemory& memory = *options_.memory;
  AddGroupsReply reply;
  reply.status = asked.spec.Validate();
  if (!reply.status.ok()) return reply;
  const ParameterSpace& space = asked.spec.space;
  if (space.admission_count() != trainer.admissions + 1 ||
      MemoryLayout(space).Digest() != asked.layout_digest) {
    reply.status = absl::InvalidArgumentError(
        absl::StrFormat("the trainer of %s adds param groups as admission %d, expected %d, laid "
                        "out with the digest "
                        "0x%016x, here 0x%016x; install the same release of optshard for both",
                        Name(), space.admission_count() - 1, trainer.admissions,
                        asked.layout_digest, MemoryLayout(space).Digest()));
    return reply;
  }
  absl::StatusOr<Doorbell> doorbell =
      Doorbell::Create(rank_, DoorbellShapeOf(asked.spec), *options_.budget);
  absl::Status prepared = asked.prepared;
  prepared.Update(doorbell.status());
  if (trainer.admissions < memory.admissions()) {
    const absl::optional<std::string> difference =
        FirstDifference(*memory.spec(trainer.admissions), "the rank's former trainer", asked.spec,
                        "the trainer that adds them");
    if (difference.has_value()) {
      reply.status = absl::InvalidArgumentError(
          absl::StrCat(Name(), ", whose param groups were added already: ", *difference));
    } else {
      reply.status = prepared;
    }
  } else if (asked.had) {
    reply.status = absl::DataLossError(absl::StrCat(
        Name(),
        " has not the param groups that were added: its state is of an earlier time; start "
        "the trainers anew, from a checkpoint"));
  } else {
    reply.status = GrowOwner(asked, prepared);
  }
  if (!reply.status.ok()) return reply;
  reply.resumes = memory.synced(trainer.admissions);
  reply.state_bytes = owner_->view().Describe().state_bytes;
  absl::MutexLock lock(&mutex_);
  trainer.doorbell = *std::move(doorbell);
  ++trainer.admissions;
  return reply;
}

absl::Status HostedRank::GrowOwner(const AddGroupsRequest& asked, const absl::Status& prepared) {
  const absl::Duration timeout = std::clamp(asked.timeout, absl::ZeroDuration(), kLongestTimeout);
  // Of groups that were added before.
  absl::Status grown = GiveMissingValues(timeout);
  if (!grown.ok()) return grown;
  grown = owner_->AddGroups(asked.spec, {}, prepared, timeout);
  if (grown.ok()) return TakeOwner();
  // Of an owner that is broken it is not known whether the others have gone on.
  if (owner_->failure().ok()) options_.drop_prepared();
  return grown;
}

// All ranks synchronise before they do anything else together, also those whose trainers have done
// so: others ended before they could know.
absl::Status HostedRank::GiveMissingValues(absl::Duration timeout) {
  if (!owner_->lacks_values()) return absl::OkStatus();
  if (!options_.rounds->Enter(rank_)) return ShuttingDown();
  SetBusy();
  absl::Status given = calls_.Synchronise(timeout);
  Finish();
  return given;
}

// Whether the trainer has all that the rank has.
absl::Status HostedRank::CheckComplete(const Attachment& trainer) const {
  const RankMemory& memory = *options_.memory;
  if (trainer.admissions == memory.admissions()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrFormat(
      "%s has param groups that were added in %d calls, its trainer has made %d "
      "of them: make the same calls of add_param_group() and add_parameters() as the "
      "trainer before",
      Name(), memory.admissions() - 1, trainer.admissions - 1));
}

}  // namespace optshard
