#include "client/attached_owner.h"

#include <poll.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/attach/attachment_rpc.h"
#include "common/clock.h"
#include "common/errors.h"
#include "common/link/poll_until.h"
#include "common/link/unique_fd.h"
#include "server/update/hyperparameter_bytes.h"

namespace optshard {
namespace {

// The answer to an attachment comes by the join's deadline, which the server knows too.
constexpr absl::Duration kAttachSlack = absl::Seconds(5);
constexpr absl::Duration kConnectTimeout = absl::Seconds(10);

absl::Time Now() { return Clock::Monotonic().Now(); }

AttachRequest RequestOf(const AttachedOwner::Options& options, const MemoryLayout& layout) {
  AttachRequest request;
  request.job = options.job;
  request.optimizer = options.optimizer;
  request.rank = options.rank;
  request.world_size = options.world_size;
  request.layout_digest = layout.Digest();
  request.space = options.space;
  request.rule = options.rule;
  for (const Hyperparameters& group : options.hyperparameters) {
    request.hyperparameters.push_back(EncodeHyperparameters({group}));
  }
  request.gradient_mode = std::string(NameOf(options.gradient_mode));
  request.policy = options.policy;
  request.buckets = options.buckets;
  request.node = options.node;
  request.threads = options.threads;
  request.join_timeout = options.join_timeout;
  request.share_parameters = options.share_parameters;
  return request;
}

std::string NameOfServer(const LocalAddress& socket, pid_t pid) {
  return absl::StrCat("the shard server at ", socket, " (process ", pid, ")");
}

}  // namespace

absl::StatusOr<std::unique_ptr<AttachedOwner>> AttachedOwner::Attach(const Options& options) {
  absl::StatusOr<StopEvent> stop = StopEvent::Create();
  if (!stop.ok()) return stop.status();
  absl::StatusOr<std::unique_ptr<LocalSocket>> socket =
      LocalSocket::Connect(options.socket, Now() + std::min(options.join_timeout, kConnectTimeout));
  if (!socket.ok()) {
    return errors::WithContext(socket.status(),
                               "attaching to the shard server (start optshard-server first)");
  }
  absl::StatusOr<PeerCredentials> peer = (*socket)->Peer();
  if (!peer.ok()) return peer.status();
  const std::string name = NameOfServer(options.socket, peer->pid);
  absl::StatusOr<ProcessHandle> server = ProcessHandle::Open(peer->pid);
  if (!server.ok()) return errors::WithContext(server.status(), name);

  const MemoryLayout layout(options.space);
  const absl::Time deadline = Now() + options.join_timeout + kAttachSlack;
  absl::Status sent =
      (*socket)->Send(EncodeAttachRequest(RequestOf(options, layout)), {}, deadline);
  if (!sent.ok()) return errors::WithContext(sent, name);
  absl::StatusOr<LocalSocket::Message> message = (*socket)->Receive(deadline);
  if (!message.ok()) {
    return errors::WithContext(message.status(), absl::StrCat("the answer of ", name));
  }
  absl::StatusOr<AttachReply> reply = DecodeAttachReply(message->bytes);
  if (!reply.ok()) return errors::WithContext(reply.status(), name);
  std::vector<UniqueFd>& descriptors = message->descriptors;
  if (descriptors.size() != kAttachDescriptors) {
    return absl::InternalError(absl::StrFormat("%s sent %d descriptors, expected %d", name,
                                               descriptors.size(), kAttachDescriptors));
  }
  absl::StatusOr<std::shared_ptr<const ReplicaSegments>> memory =
      ReplicaSegments::Attach(layout, options.rank, std::move(descriptors[kParametersDescriptor]),
                              std::move(descriptors[kGradientsDescriptor]), reply->parameters_rank);
  if (!memory.ok()) return errors::WithContext(memory.status(), name);
  const DoorbellShape shape = {options.space.parameter_count(), options.space.group_count()};
  absl::StatusOr<Doorbell> doorbell =
      Doorbell::Attach(options.rank, shape, std::move(descriptors[kDoorbellDescriptor]));
  if (!doorbell.ok()) return errors::WithContext(doorbell.status(), name);
  return std::unique_ptr<AttachedOwner>(
      new AttachedOwner(options, *std::move(socket), *std::move(server), *std::move(reply),
                        *std::move(memory), *std::move(doorbell), *std::move(stop)));
}

AttachedOwner::AttachedOwner(const Options& options, std::unique_ptr<LocalSocket> socket,
                             ProcessHandle server, AttachReply reply,
                             std::shared_ptr<const ReplicaSegments> memory, Doorbell doorbell,
                             StopEvent stop)
    : options_(options),
      layout_(options.space),
      socket_(std::move(socket)),
      server_(std::move(server)),
      reply_(std::move(reply)),
      memory_(std::move(memory)),
      doorbell_(std::move(doorbell)),
      finished_(reply_.finished_step),
      stop_(std::move(stop)),
      watcher_([this] { WatchServer(); }) {}

AttachedOwner::~AttachedOwner() {
  if (getpid() == process_) {
    Detach();
  } else {
    // A forked child has no such thread, and its parent is still attached.
    watcher_.detach();
  }
}

void AttachedOwner::Detach() {
  if (!watcher_.joinable()) return;
  stop_.Signal();
  watcher_.join();
  socket_->HangUp();
}

std::string AttachedOwner::Server() const { return NameOfServer(options_.socket, server_.pid()); }

absl::Status AttachedOwner::SetBlob(absl::string_view blob) {
  if (blob.size() > kMaxBlobBytes) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "the blob of rank %d has %d bytes, at most %d are kept; save what is larger to a file and "
        "keep its name",
        options_.rank, blob.size(), kMaxBlobBytes));
  }
  request_.blob.assign(blob.data(), blob.size());
  request_.has_blob = true;
  return absl::OkStatus();
}

absl::Status AttachedOwner::CheckReplica(absl::Span<const ReplicaTensor> replica) const {
  const ParameterSpace& space = options_.space;
  if (static_cast<int>(replica.size()) != space.parameter_count()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("the replica has %d tensors, expected one for each of the %d parameters",
                        replica.size(), space.parameter_count()));
  }
  for (int p = 0; p < space.parameter_count(); ++p) {
    if (space.parameter(p).elements() == 0) continue;
    const MemoryLayout::Place& place = layout_.place(p);
    const ReplicaRegion& region = memory_->regions()[place.region];
    const ReplicaTensor& tensor = replica[p];
    if (tensor.parameter == region.parameters + place.offset_elements &&
        (tensor.gradient == nullptr ||
         tensor.gradient == region.gradients + place.offset_elements)) {
      continue;
    }
    return absl::InvalidArgumentError(absl::StrFormat(
        "parameter %d \"%s\" or its gradient does not lie in the memory of %s, where it looks for "
        "them",
        p, space.parameter(p).name, Server()));
  }
  return absl::OkStatus();
}

absl::Status AttachedOwner::SyncParameters(absl::Span<const ReplicaTensor> replica,
                                           absl::Span<const ReplicaRegion>,
                                           absl::Duration timeout) {
  absl::Status lies_there = CheckReplica(replica);
  if (!lies_there.ok()) return lies_there;
  request_.kind = DoorbellRequest::Kind::kSync;
  absl::StatusOr<DoorbellReply> reply = Ask(timeout);
  return reply.ok() ? reply->status : reply.status();
}

absl::StatusOr<StepInfo> AttachedOwner::Step(const StepInput& input) {
  absl::Status lies_there = CheckReplica(input.replica);
  if (!lies_there.ok()) return lies_there;
  request_.kind = DoorbellRequest::Kind::kStep;
  request_.has_gradient.resize(input.replica.size());
  for (size_t p = 0; p < input.replica.size(); ++p) {
    request_.has_gradient[p] = input.replica[p].gradient != nullptr;
  }
  // Mostly they are the last step's.
  if (input.hyperparameters != absl::MakeConstSpan(hyperparameters_) ||
      request_.hyperparameter_version == 0) {
    hyperparameters_.assign(input.hyperparameters.begin(), input.hyperparameters.end());
    request_.hyperparameters = EncodeHyperparameters(hyperparameters_);
    ++request_.hyperparameter_version;
  }
  const absl::StatusOr<DoorbellReply> reply = Ask(input.timeout);
  if (!reply.ok()) return reply.status();
  if (!reply->status.ok()) return reply->status;
  request_.has_blob = false;
  StepInfo info;
  info.step = finished_ = reply->step;
  info.skipped = reply->skipped;
  info.prepare = reply->prepare;
  info.commit = reply->commit;
  info.apply = reply->apply;
  return info;
}

absl::StatusOr<DoorbellReply> AttachedOwner::Ask(absl::Duration timeout) {
  absl::Status failed = failure();
  if (!failed.ok()) return failed;
  if (stopped_) {
    return absl::FailedPreconditionError(
        absl::StrCat("rank ", options_.rank, " has detached from ", Server()));
  }
  request_.timeout = timeout;
  const absl::StatusOr<uint64_t> number = doorbell_.Ask(request_);
  if (!number.ok()) return number.status();
  const absl::Duration longest = timeout + options_.answer_slack;
  const absl::Time deadline = Now() + longest;
  while (!doorbell_.WaitForReply(*number, deadline)) {
    absl::Status gone = ServerGone(*number);
    if (!gone.ok()) return Fail(gone);
    if (Now() < deadline) continue;
    const bool withdrawn = doorbell_.Withdraw(*number);
    const absl::Status late = errors::PeersTimedOut(
        {options_.rank}, absl::StrFormat("%s has not %s %s within %s", Server(),
                                         withdrawn ? "begun, and will not begin," : "answered to",
                                         What(), absl::FormatDuration(longest)));
    return withdrawn ? late : Fail(BegunUnanswered(late));
  }
  DoorbellReply reply = doorbell_.ReadReply();
  if (reply.broken) Fail(reply.status).IgnoreError();
  return reply;
}

// OK while it is there, or has answered in its last moment.
absl::Status AttachedOwner::ServerGone(uint64_t number) {
  absl::Status gone;
  {
    absl::MutexLock lock(&mutex_);
    gone = server_gone_;
  }
  if (gone.ok() || doorbell_.WaitForReply(number, absl::InfinitePast())) {
    return absl::OkStatus();
  }
  if (doorbell_.Withdraw(number)) {
    return errors::WithContext(
        gone, absl::StrFormat("rank %d, %s, which was not begun", options_.rank, What()));
  }
  return BegunUnanswered(gone);
}

std::string AttachedOwner::What() const {
  return request_.kind == DoorbellRequest::Kind::kSync
             ? "the synchronisation of the first parameters"
             : absl::StrCat("step ", finished_ + 1);
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
  return failure_.ok() ? server_gone_ : failure_;
}

absl::Status AttachedOwner::Stop(absl::Duration) {
  stopped_ = true;
  Detach();
  return absl::OkStatus();
}

void AttachedOwner::WatchServer() {
  absl::Status gone;
  while (gone.ok()) {
    pollfd watched[] = {
        {stop_.fd(), POLLIN, 0},
        {server_.fd(), POLLIN, 0},
        {socket_->fd(), POLLIN | POLLRDHUP, 0},
    };
    PollUntil(absl::MakeSpan(watched), absl::InfiniteFuture());
    if (watched[0].revents != 0) return;
    // It says why before it hangs up.
    const absl::StatusOr<LocalSocket::Message> message =
        socket_->Receive(watched[2].revents != 0 ? Now() + absl::Seconds(1) : Now());
    if (message.ok()) {
      gone = errors::WithContext(DecodeGoodbye(message->bytes), Server());
    } else if (watched[1].revents != 0) {
      gone = absl::UnavailableError(absl::StrCat(Server(), " has ended"));
    } else {
      gone = absl::UnavailableError(absl::StrCat(Server(), " has hung up"));
    }
  }
  {
    absl::MutexLock lock(&mutex_);
    server_gone_ = gone;
  }
  doorbell_.WakeTrainer();
}

}  // namespace optshard
