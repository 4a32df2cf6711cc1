// How trainers get a hosted rank, and leave it: any thread.
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "common/attach/write_counts.h"
#include "common/clock.h"
#include "common/errors.h"
#include "server/node/doorbell_shape.h"
#include "server/node/hosted_rank.h"

namespace optshard {
namespace {

// For a trainer that has just hung up, or died, to be noticed.
constexpr absl::Duration kHangUpTime = absl::Milliseconds(500);
constexpr absl::Duration kAttachLook = absl::Milliseconds(50);

absl::Time Now() { return Clock::Monotonic().Now(); }

std::string PlaceOf(const AttachRequest& request) {
  if (request.device.empty()) return "in memory of the host";
  return absl::StrCat("on ", request.device,
                      request.state_on_host ? ", and its state in memory of the host" : "");
}

absl::optional<std::string> PlacesDiffer(const AttachRequest& first, const AttachRequest& request) {
  if (first.device == request.device && first.state_on_host == request.state_on_host) {
    return absl::nullopt;
  }
  return absl::StrCat("the parameters of the rank's first trainer are ", PlaceOf(first),
                      ", those of the trainer that attaches ", PlaceOf(request));
}

}  // namespace

absl::Status HostedRank::CheckSuccessor(const AttachRequest& request) const {
  absl::optional<std::string> difference = FirstDifference(
      first_.spec, "the rank's first trainer", request.spec, "the trainer that attaches");
  if (!difference.has_value()) difference = PlacesDiffer(first_, request);
  if (!difference.has_value()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(Name(), ": ", *difference, "; start all trainers of a job alike"));
}

absl::Status HostedRank::TakePlace(const AttachRequest& request, const ProcessHandle& process) {
  if (draining_) return ShuttingDown();
  absl::Status same = CheckSuccessor(request);
  if (!same.ok()) return same;
  // Who watches the holder, or waits on behalf of one that is dead, may not have told yet.
  const auto is_free = [this] {
    mutex_.AssertReaderHeld();
    return place_.free();
  };
  mutex_.AwaitWithTimeout(absl::Condition(&is_free), kHangUpTime);
  absl::Status free = place_.CheckFree(Name(), process);
  if (free.ok()) place_.Reserve(process);
  return free;
}

bool HostedRank::Settled() const {
  if (phase_ == Phase::kServing) return place_.attachment() == nullptr && !busy_ && !LostOthers();
  return phase_ == Phase::kEnded;
}

absl::StatusOr<std::shared_ptr<Attachment>> HostedRank::Attach(const AttachRequest& request,
                                                               ProcessHandle process,
                                                               const std::function<bool()>& here,
                                                               AttachReply* reply) {
  const absl::Time deadline = Now() + request.join_timeout;
  {
    absl::MutexLock lock(&mutex_);
    absl::Status place = TakePlace(request, process);
    if (!place.ok()) return place;
  }
  while (true) {
    const bool still_here = here() && !process.Gone();
    absl::MutexLock lock(&mutex_);
    const bool settled = mutex_.AwaitWithTimeout(absl::Condition(this, &HostedRank::Settled),
                                                 still_here ? kAttachLook : absl::ZeroDuration());
    // Starting has a deadline of its own, whose error says more.
    const bool late = (phase_ == Phase::kServing || options_.memory->synced()) && Now() >= deadline;
    if (still_here && !settled && !late) continue;
    place_.GiveUp(!still_here);
    if (!still_here) {
      control_.Ring();
      return absl::UnavailableError("the trainer has gone while it attached");
    }
    if (settled) return Admit(request, std::move(process), reply);
    if (phase_ == Phase::kStarting) return away_;
    return absl::DeadlineExceededError(absl::StrCat(
        Name(),
        " is still in the step, or the first synchronisation, of the trainer before: other "
        "ranks have not come to it within ",
        absl::FormatDuration(request.join_timeout)));
  }
}

absl::StatusOr<std::shared_ptr<Attachment>> HostedRank::Admit(const AttachRequest& request,
                                                              ProcessHandle process,
                                                              AttachReply* reply) {
  if (phase_ == Phase::kEnded) return start_status_.ok() ? ShuttingDown() : start_status_;
  absl::Status failure = owner_->failure();
  if (!failure.ok()) {
    return errors::WithContext(
        failure, absl::StrCat("the shard owner of ", Name(),
                              " has failed, and with it the job: start the servers anew"));
  }
  absl::StatusOr<Doorbell> doorbell =
      Doorbell::Create(rank_, DoorbellShapeOf(request.spec), *options_.budget);
  if (!doorbell.ok()) return doorbell.status();
  absl::StatusOr<std::unique_ptr<WriteCountAsker>> write_counts = WriteCountAsker::Create();
  if (!write_counts.ok()) return write_counts.status();
  const auto attachment =
      std::make_shared<Attachment>(record_.NextIncarnation(), std::move(process),
                                   *std::move(doorbell), *std::move(write_counts));
  place_.Seat(attachment);
  writes_->Seat(attachment->write_counts);
  reply->incarnation = attachment->incarnation;
  reply->resumes = options_.memory->synced();
  reply->finished_step = progress_.finished;
  reply->last_call = LastCall(progress_);
  StepBytes::Kept blob = record_.Blob(progress_.finished);
  reply->blob = std::move(blob.bytes);
  reply->blob_step = blob.step;
  reply->generation = owner_->plan().generation;
  reply->owner_address = options_.owner_address;
  reply->coordinator = options_.coordinator_address;
  reply->state_bytes = owner_->view().Describe().state_bytes;
  reply->parameters_rank = rank_;
  reply->keeper = options_.keeper;
  reply->plane = *options_.plane_notice;
  Wake();
  return attachment;
}

void HostedRank::Detach(const std::shared_ptr<Attachment>& attachment, absl::string_view how) {
  absl::MutexLock lock(&mutex_);
  if (!place_.Leave(attachment, how)) return;
  writes_->Gone();
  Wake();
}

}  // namespace optshard
