#include "client/owner/attached_owner.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/owner/attached_state.h"
#include "common/clock.h"
#include "common/dataplane/plane_notice.h"
#include "common/errors.h"
#include "common/hyperparameter_bytes.h"
#include "common/log.h"
#include "common/membership/coordinator_client_rpc.h"
#include "server/shard/engine/replica_placement.h"
#include "server/update/group_update.h"

namespace optshard {
namespace {

constexpr absl::Duration kConnectTimeout = absl::Seconds(10);
// For what is being saved to be copied; and for that where an exception ends the trainer, perhaps.
constexpr absl::Duration kLeaveTimeout = absl::Seconds(5);
constexpr absl::Duration kLastTimeout = absl::Seconds(1);

absl::Time Now() { return Clock::Monotonic().Now(); }

}  // namespace

AttachRequest AttachedOwner::RequestOf(const Options& options) {
  AttachRequest request;
  request.job = options.job;
  request.optimizer = options.optimizer;
  request.rank = options.rank;
  request.spec = options.spec;
  request.layout_digest = MemoryLayout(options.spec.space).Digest();
  request.node = options.node;
  request.threads = options.threads;
  request.join_timeout = options.join_timeout;
  request.device = options.hardware_id;
  request.state_on_host = options.state_on_host;
  return request;
}

void AttachedOwner::LogPlane(const Options& options, const AttachReply& reply) {
  LogContext who;
  who.role = "client";
  who.job = options.job;
  who.rank = options.rank;
  who.generation = reply.generation;
  LogNotice(reply.plane, who);
}

absl::StatusOr<std::unique_ptr<AttachedOwner>> AttachedOwner::Attach(const Options& options) {
  const MemoryLayout layout(options.spec.space);
  absl::StatusOr<std::unique_ptr<ServerLine>> line = ServerLine::Open(
      options.socket, RequestOf(options), std::min(options.join_timeout, kConnectTimeout));
  if (!line.ok()) return line.status();
  absl::StatusOr<std::shared_ptr<const ReplicaSegments>> memory =
      ReplicaSegments::Attach(layout, options.rank, (*line)->TakeReplica(),
                              (*line)->reply().parameters_rank, nullptr, PlaceOf(options));
  if (!memory.ok()) return errors::WithContext(memory.status(), (*line)->name());
  LogPlane(options, (*line)->reply());
  return std::unique_ptr<AttachedOwner>(
      new AttachedOwner(options, *std::move(line), *std::move(memory)));
}

AttachedOwner::AttachedOwner(const Options& options, std::shared_ptr<ServerLine> line,
                             std::shared_ptr<const ReplicaSegments> memory)
    : process_(getpid()),
      options_(options),
      specs_({options.spec}),
      layout_(options.spec.space),
      first_(line->reply()),
      memory_(std::move(memory)),
      resumes_(first_.resumes),
      finished_(first_.finished_step),
      last_call_(first_.last_call),
      line_(std::move(line)),
      state_bytes_(first_.state_bytes) {}

AttachedOwner::~AttachedOwner() { Leave(kLastTimeout); }

absl::StatusOr<std::vector<std::string>> AttachedOwner::owner_addresses(
    absl::Duration timeout) const {
  absl::StatusOr<std::unique_ptr<CoordinatorClient>> coordinator =
      MakeCoordinatorClient(first_.coordinator);
  if (!coordinator.ok()) return coordinator.status();
  return (*coordinator)->GetOwners(options_.optimizer, Clock::Monotonic().Now() + timeout);
}

std::shared_ptr<ServerLine> AttachedOwner::line() const {
  absl::MutexLock lock(&mutex_);
  return line_;
}

absl::Status AttachedOwner::SetBlob(absl::string_view blob) {
  absl::Status size = CheckBlobSize(options_.rank, blob);
  if (!size.ok()) return size;
  request_.blob.assign(blob.data(), blob.size());
  request_.has_blob = true;
  return absl::OkStatus();
}

void AttachedOwner::KeepParameters(const std::shared_ptr<const ParameterMemory>& memory) {
  writes_ = options_.copy_parameters_at_once ? nullptr : memory->writes;
  line()->SetWrites(writes_);
}

absl::Status AttachedOwner::CheckReplica(absl::Span<const ReplicaTensor> replica) const {
  absl::Status placed = CheckPlacement(spec().space, layout_, memory_->regions(), replica);
  if (placed.ok()) return placed;
  return errors::WithContext(placed, absl::StrCat("in the memory of ", line()->name()));
}

absl::Status AttachedOwner::SyncParameters(absl::Span<const ReplicaTensor> replica,
                                           absl::Span<const ReplicaRegion>,
                                           absl::Duration timeout) {
  return AskBetweenSteps(DoorbellRequest::Kind::kSync, replica, timeout);
}

// The server knows whether the ranks have them, also one that has taken over.
absl::Status AttachedOwner::GiveAddedValues(absl::Span<const ReplicaTensor> replica,
                                            absl::Span<const ReplicaRegion>,
                                            absl::Duration timeout) {
  return AskBetweenSteps(DoorbellRequest::Kind::kGiveAdded, replica, timeout);
}

absl::Status AttachedOwner::VerifyReplicas(absl::Span<const ReplicaTensor> replica,
                                           absl::Span<const ReplicaRegion>,
                                           absl::Duration timeout) {
  return AskBetweenSteps(DoorbellRequest::Kind::kVerify, replica, timeout);
}

absl::Status AttachedOwner::AskBetweenSteps(DoorbellRequest::Kind kind,
                                            absl::Span<const ReplicaTensor> replica,
                                            absl::Duration timeout) {
  absl::Status ready = CheckReplica(replica);
  if (ready.ok()) ready = AwaitOwnWork(timeout);
  if (!ready.ok()) return ready;
  request_.kind = kind;
  request_.row_marks.clear();
  absl::StatusOr<DoorbellReply> reply = Ask(timeout);
  return reply.ok() ? reply->status : reply.status();
}

absl::Status AttachedOwner::ShareBytes(const ByteShare& share, absl::Duration timeout) {
  request_.kind = DoorbellRequest::Kind::kShareBytes;
  request_.share = share;
  const absl::StatusOr<DoorbellReply> reply = Ask(timeout);
  request_.share = {};
  if (!reply.ok()) return reply.status();
  if (!reply->status.ok()) return reply->status;
  const absl::Span<const char> shared = line()->doorbell().share_window();
  std::copy_n(shared.begin(), share.bytes.size(), share.bytes.begin());
  return absl::OkStatus();
}

absl::Status AttachedOwner::ReplaceState(absl::Duration timeout) {
  request_.kind = DoorbellRequest::Kind::kReplaceState;
  request_.row_marks.clear();
  const absl::StatusOr<DoorbellReply> reply = Ask(timeout);
  return reply.ok() ? reply->status : reply.status();
}

absl::Status AttachedOwner::FinishLoading(const LoadedStep& loaded,
                                          absl::Span<const ReplicaTensor> replica,
                                          absl::Span<const ReplicaRegion>, absl::Duration timeout) {
  absl::Status ready = CheckReplica(replica);
  if (ready.ok()) ready = AwaitOwnWork(timeout);
  if (ready.ok()) ready = SetBlob(loaded.blob);
  if (!ready.ok()) return ready;
  request_.kind = DoorbellRequest::Kind::kFinishLoading;
  request_.call = loaded.step;
  request_.load_token = loaded.token;
  request_.row_marks.clear();
  SetHyperparameters(loaded.hyperparameters);
  loading_to_ = loaded.step;
  const absl::StatusOr<DoorbellReply> reply = Ask(timeout);
  request_.has_blob = false;
  if (!reply.ok()) return reply.status();
  // An owner that others have left may have loaded: it learns that from them.
  if (errors::IsOwnerAway(reply->status)) return reply->status;
  loading_to_.reset();
  if (!reply->status.ok()) return reply->status;
  last_call_ = finished_ = loaded.step;
  return absl::OkStatus();
}

void AttachedOwner::SetHyperparameters(absl::Span<const Hyperparameters> given) {
  // Mostly they are the last step's.
  if (given == absl::MakeConstSpan(hyperparameters_) && request_.hyperparameter_version != 0) {
    return;
  }
  hyperparameters_.assign(given.begin(), given.end());
  request_.hyperparameters = EncodeHyperparameters(hyperparameters_);
  ++request_.hyperparameter_version;
}

absl::StatusOr<StepInfo> AttachedOwner::Step(const StepInput& input) {
  absl::Status ready = CheckReplica(input.replica);
  if (ready.ok()) ready = AwaitOwnWork(input.timeout);
  if (!ready.ok()) return ready;
  request_.kind = DoorbellRequest::Kind::kStep;
  request_.call = last_call_ + 1;
  request_.has_gradient.resize(input.replica.size());
  request_.row_marks.resize(input.replica.size());
  for (size_t p = 0; p < input.replica.size(); ++p) {
    request_.has_gradient[p] = input.replica[p].gradient != nullptr;
    request_.row_marks[p] =
        request_.has_gradient[p] ? input.replica[p].gradient_rows.marks : nullptr;
  }
  SetHyperparameters(input.hyperparameters);
  const absl::StatusOr<DoorbellReply> reply = Ask(input.timeout);
  if (!reply.ok()) return reply.status();
  if (!reply->status.ok()) return reply->status;
  request_.has_blob = false;
  StepInfo info;
  info.skipped = reply->step == finished_;
  info.step = finished_ = reply->step;
  last_call_ = request_.call;
  info.prepare = reply->prepare;
  info.commit = reply->commit;
  info.apply = reply->apply;
  return info;
}

absl::StatusOr<StateAccess*> AttachedOwner::state(absl::Duration timeout) {
  absl::Status usable = CheckUsable();
  if (!usable.ok()) return usable;
  if (state_ == nullptr || state_->groups() != spec().rules.size()) {
    absl::StatusOr<std::vector<GroupUpdate>> groups = ValidateGroups(spec());
    if (!groups.ok()) return groups.status();
    state_ = std::make_unique<State>(this, *std::move(groups));
  }
  state_->SetTimeout(timeout);
  return state_.get();
}

absl::StatusOr<DoorbellReply> AttachedOwner::Ask(absl::Duration timeout) {
  const absl::Time start = Now();
  absl::Status attached_now = EnsureAttached(timeout);
  if (!attached_now.ok()) return attached_now;
  const std::shared_ptr<ServerLine> line = this->line();
  return AskOver(*line, timeout - (Now() - start), options_.answer_slack);
}

absl::StatusOr<DoorbellReply> AttachedOwner::AskOver(ServerLine& line, absl::Duration timeout,
                                                     absl::Duration slack) {
  const absl::Time start = Now();
  request_.timeout = timeout;
  request_.writes = line.writes();
  const absl::StatusOr<uint64_t> number = line.doorbell().Ask(request_);
  if (!number.ok()) return number.status();
  const absl::Duration longest = timeout + slack;
  const absl::Time deadline = start + longest;
  while (!line.doorbell().WaitForReply(*number, deadline)) {
    absl::Status gone = ServerGone(line, *number);
    if (!gone.ok()) {
      unanswered_ = *number;
      return gone;
    }
    if (Now() < deadline) continue;
    const bool withdrawn = line.doorbell().Withdraw(*number);
    const absl::Status late = errors::PeersTimedOut(
        {options_.rank}, absl::StrFormat("%s has not %s %s within %s", line.name(),
                                         withdrawn ? "begun, and will not begin," : "answered to",
                                         What(), absl::FormatDuration(longest)));
    return withdrawn ? late : Fail(BegunUnanswered(late));
  }
  DoorbellReply reply = line.doorbell().ReadReply();
  if (reply.broken) Fail(reply.status).IgnoreError();
  return reply;
}

absl::Status AttachedOwner::EnsureAttached(absl::Duration timeout) {
  const absl::Time start = Now();
  absl::Status usable = CheckUsable();
  if (!usable.ok() || line()->gone().ok()) return usable;
  absl::Status back = AttachAgain(timeout);
  if (!back.ok()) return back;
  // Too late to ask: the others would not come in time, and that would be an error for all.
  if (Now() - start <= timeout / 2) return absl::OkStatus();
  return errors::OwnerAway({options_.rank}, "it has come back only now");
}

// OK where a request can be made: of the server, or of the one that takes over.
absl::Status AttachedOwner::CheckUsable() {
  {
    absl::MutexLock lock(&mutex_);
    if (!failure_.ok()) return failure_;
  }
  const std::shared_ptr<ServerLine> line = this->line();
  if (stopped_) {
    return absl::FailedPreconditionError(
        absl::StrCat("rank ", options_.rank, " has detached from ", line->name()));
  }
  if (line->gone().ok() || line->comes_back()) return absl::OkStatus();
  // Nobody can say any more whether the last request was done.
  return unanswered_ != 0 ? ServerGone(*line, unanswered_) : line->gone();
}

// OK while it is there, or has answered in its last moment.
absl::Status AttachedOwner::ServerGone(ServerLine& line, uint64_t number) {
  if (line.gone().ok() || line.doorbell().WaitForReply(number, absl::InfinitePast())) {
    return absl::OkStatus();
  }
  // Whether it had begun, its successor knows.
  if (line.comes_back()) return errors::OwnerAway({options_.rank}, line.gone().message());
  const absl::Status gone = line.gone();  // which knows of the keeper's end only now
  if (line.doorbell().Withdraw(number)) {
    return Fail(errors::WithContext(
        gone, absl::StrFormat("rank %d, %s, which was not begun", options_.rank, What())));
  }
  return Fail(BegunUnanswered(gone));
}

std::string AttachedOwner::What() const {
  switch (request_.kind) {
    case DoorbellRequest::Kind::kSync:
      return "the synchronisation of the first parameters";
    case DoorbellRequest::Kind::kGiveAdded:
      return "the synchronisation of the added parameters";
    case DoorbellRequest::Kind::kVerify:
      return "the verification of the replicas";
    case DoorbellRequest::Kind::kReadState:
      return "the copy of the optimizer state";
    case DoorbellRequest::Kind::kWriteState:
      return "the replacement of the optimizer state";
    case DoorbellRequest::Kind::kStageState:
    case DoorbellRequest::Kind::kStageAll:
    case DoorbellRequest::Kind::kWriteStaged:
    case DoorbellRequest::Kind::kWriteStagedBytes:
    case DoorbellRequest::Kind::kDropStaged:
      return "the staging of loaded state";
    case DoorbellRequest::Kind::kReplaceState:
      return "the end of the loading of a state dict";
    case DoorbellRequest::Kind::kShareBytes:
      return "an exchange of optimizer state";
    case DoorbellRequest::Kind::kFinishLoading:
      return "the end of the loading of a checkpoint";
    case DoorbellRequest::Kind::kLeave:
      return "the end of its attachment";
    case DoorbellRequest::Kind::kStep:
      break;
  }
  return absl::StrCat("step ", finished_ + 1);
}

absl::Status AttachedOwner::BegunUnanswered(const absl::Status& cause) const {
  if (request_.kind == DoorbellRequest::Kind::kStep) {
    return errors::StepInDoubt(finished_ + 1, cause);
  }
  return errors::WithContext(
      cause, absl::StrFormat("rank %d, %s, which was begun", options_.rank, What()));
}

absl::Status AttachedOwner::Fail(const absl::Status& failure) {
  absl::MutexLock lock(&mutex_);
  failure_.Update(failure);
  return failure_;
}

absl::Status AttachedOwner::failure() const {
  absl::MutexLock lock(&mutex_);
  // Where the server comes back, there is somebody to attach to again.
  return failure_.ok() && !line_->comes_back() ? line_->gone() : failure_;
}

int64_t AttachedOwner::state_bytes() const {
  absl::MutexLock lock(&mutex_);
  return state_bytes_;
}

// Afterwards the trainer may write to its parameters, which snapshots may be copying. A server that
// does not answer takes it for one that was killed.
void AttachedOwner::Leave(absl::Duration timeout) {
  const std::shared_ptr<ServerLine> line = this->line();
  if (stopped_ || getpid() != process_ || !line->gone().ok() || !failure().ok()) return;
  // A successor finds its gradients' memory at rest.
  AwaitOwnWork(timeout).IgnoreError();
  request_.kind = DoorbellRequest::Kind::kLeave;
  AskOver(*line, timeout, absl::ZeroDuration()).status().IgnoreError();
}

absl::Status AttachedOwner::Stop(absl::Duration timeout) {
  Leave(std::min(timeout, kLeaveTimeout));
  stopped_ = true;
  line()->Detach();
  return absl::OkStatus();
}

}  // namespace optshard
