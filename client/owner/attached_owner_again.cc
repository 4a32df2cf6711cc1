// How a trainer adds param groups at its shard server, and how it goes on with the server's
// successor.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/owner/attached_owner.h"
#include "common/clock.h"
#include "common/errors.h"

namespace optshard {
namespace {

// For a server whose keeper starts it again to listen. Who waits for less, gives up earlier.
constexpr absl::Duration kReturnTimeout = absl::Seconds(2);
// A server waits for the ranks twice, and builds its part between.
constexpr int kGrowthTimeouts = 3;

absl::Time Now() { return Clock::Monotonic().Now(); }

}  // namespace

absl::Status AttachedOwner::AddGroups(const OptimizerSpec& spec,
                                      const std::vector<std::shared_ptr<TrainerUpdate>>&,
                                      const absl::Status& prepared, absl::Duration timeout) {
  const absl::Time start = Now();
  absl::Status attached = EnsureAttached(timeout);
  if (!attached.ok()) return attached;
  const std::shared_ptr<ServerLine> line = this->line();
  const MemoryLayout layout(spec.space);
  AddGroupsRequest request;
  request.spec = spec;
  request.layout_digest = layout.Digest();
  request.prepared = prepared;
  request.timeout = timeout - (Now() - start);
  absl::StatusOr<ServerLine::Added> added = line->AddGroups(
      options_.rank, request, start + kGrowthTimeouts * timeout + options_.answer_slack);
  if (!added.ok()) {
    // Whether the ranks have gone on, the successor knows.
    if (!line->gone().ok() && line->comes_back()) {
      return errors::OwnerAway({options_.rank}, added.status().message());
    }
    return Fail(errors::WithContext(added.status(), "adding param groups"));
  }
  if (!added->reply.status.ok()) {
    return added->reply.broken ? Fail(added->reply.status) : added->reply.status;
  }
  absl::StatusOr<std::shared_ptr<const ReplicaSegments>> memory =
      ReplicaSegments::Attach(layout, options_.rank, std::move(added->replica),
                              first_.parameters_rank, memory_.get(), PlaceOf(options_));
  if (!memory.ok()) return Fail(errors::WithContext(memory.status(), line->name()));
  memory_ = *std::move(memory);
  layout_ = layout;
  specs_.push_back(spec);
  resumes_ = added->reply.resumes;
  absl::MutexLock lock(&mutex_);
  state_bytes_ = added->reply.state_bytes;
  return absl::OkStatus();
}

// The error of an attempt to attach: OwnerAway, unless no other attempt can help.
absl::Status AttachedOwner::MayComeYet(const absl::Status& failed) {
  // NOT_FOUND: it has ended again just now; ALREADY_EXISTS: it has not seen yet that an attempt
  // of this trainer's own was given up.
  const bool may_come_yet = absl::IsUnavailable(failed) || absl::IsDeadlineExceeded(failed) ||
                            absl::IsNotFound(failed) || absl::IsAlreadyExists(failed);
  if (!may_come_yet) return Fail(failed);
  return errors::IsOwnerAway(failed) ? failed
                                     : errors::OwnerAway({options_.rank}, failed.message());
}

absl::Status AttachedOwner::NotTheSame(const ServerLine& line) {
  return Fail(absl::DataLossError(absl::StrFormat(
      "%s has not the state of rank %d after step %d: it was started anew, and is after step %d; "
      "start the trainers anew, from a checkpoint",
      line.name(), options_.rank, finished_, line.reply().finished_step)));
}

absl::Status AttachedOwner::AttachAgain(absl::Duration timeout) {
  AttachRequest request = RequestOf(options_);
  request.join_timeout = std::min(timeout, options_.join_timeout);
  const absl::Time deadline = Now() + request.join_timeout + options_.answer_slack;
  absl::StatusOr<std::unique_ptr<ServerLine>> opened =
      ServerLine::Open(options_.socket, request, std::min(timeout, kReturnTimeout));
  if (!opened.ok()) return MayComeYet(opened.status());
  ServerLine& line = **opened;
  const StepNumber finished = line.reply().finished_step;
  const bool has_loaded = loading_to_ == finished;
  // 0: what the memory has is torn, and waits for a checkpoint.
  const bool goes_on =
      finished == finished_ || finished == finished_ + 1 || finished == 0 || has_loaded;
  const absl::StatusOr<bool> same = memory_->AreOf(line.TakeReplica());
  if (!same.ok()) return errors::OwnerAway({options_.rank}, same.status().message());
  if (!*same || !goes_on) return NotTheSame(line);
  absl::Status grown = TakeAddedAgain(line, deadline);
  if (!grown.ok()) return grown;
  unanswered_ = 0;
  if (has_loaded) {
    finished_ = finished;
    last_call_ = line.reply().last_call;
    loading_to_.reset();
  }
  LogPlane(options_, line.reply());
  line.SetWrites(writes_);
  absl::MutexLock lock(&mutex_);
  line_ = *std::move(opened);
  return absl::OkStatus();
}

// The rank has them still; the trainer gets a doorbell for all of them.
absl::Status AttachedOwner::TakeAddedAgain(ServerLine& line, absl::Time deadline) {
  for (size_t i = 1; i < specs_.size(); ++i) {
    AddGroupsRequest request;
    request.spec = specs_[i];
    request.layout_digest = MemoryLayout(specs_[i].space).Digest();
    request.had = true;
    const absl::StatusOr<ServerLine::Added> added =
        line.AddGroups(options_.rank, request, deadline);
    if (!added.ok()) return MayComeYet(added.status());
    if (!added->reply.status.ok()) return MayComeYet(added->reply.status);
    const absl::StatusOr<bool> same = memory_->AreOf(added->replica, static_cast<int>(i));
    if (!same.ok()) return errors::OwnerAway({options_.rank}, same.status().message());
    if (!*same) return NotTheSame(line);
  }
  return absl::OkStatus();
}

}  // namespace optshard
