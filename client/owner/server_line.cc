#include "client/owner/server_line.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/attach/attachment_rpc.h"
#include "common/clock.h"
#include "common/errors.h"
#include "common/link/poll_until.h"
#include "common/link/unique_fd.h"
#include "server/node/doorbell_shape.h"

namespace optshard {
namespace {

// The answer to an attachment comes by the join's deadline, which the server knows too.
constexpr absl::Duration kAttachSlack = absl::Seconds(5);
// For a server that hangs up to say why.
constexpr absl::Duration kGoodbyeTimeout = absl::Seconds(1);

absl::Time Now() { return Clock::Monotonic().Now(); }

}  // namespace

absl::StatusOr<std::unique_ptr<ServerLine>> ServerLine::Open(const LocalAddress& address,
                                                             const AttachRequest& request,
                                                             absl::Duration connect_timeout) {
  absl::StatusOr<StopEvent> stop = StopEvent::Create();
  if (!stop.ok()) return stop.status();
  absl::StatusOr<std::unique_ptr<LocalSocket>> socket =
      LocalSocket::Connect(address, Now() + connect_timeout);
  if (!socket.ok()) {
    return errors::WithContext(socket.status(),
                               absl::IsUnavailable(socket.status())
                                   ? "attaching to the shard server (start optshard-server first)"
                                   : "attaching to the shard server");
  }
  absl::StatusOr<PeerCredentials> peer = (*socket)->Peer();
  if (!peer.ok()) return peer.status();
  const std::string name =
      absl::StrCat("the shard server at ", address, " (process ", peer->pid, ")");
  absl::StatusOr<ProcessHandle> server = ProcessHandle::Open(peer->pid);
  if (!server.ok()) return errors::WithContext(server.status(), name);

  const absl::Time deadline = Now() + request.join_timeout + kAttachSlack;
  absl::Status sent = (*socket)->Send(EncodeAttachRequest(request), {}, deadline);
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
  absl::StatusOr<Doorbell> doorbell = Doorbell::Attach(request.rank, DoorbellShapeOf(request.spec),
                                                       std::move(descriptors[kDoorbellDescriptor]));
  if (!doorbell.ok()) return errors::WithContext(doorbell.status(), name);
  absl::optional<ProcessHandle> keeper;
  if (reply->keeper != 0) {
    absl::StatusOr<ProcessHandle> opened = ProcessHandle::Open(reply->keeper);
    if (opened.ok()) {
      keeper = *std::move(opened);
    } else if (!absl::IsNotFound(opened.status())) {
      return errors::WithContext(opened.status(), absl::StrCat("the keeper of ", name));
    }
  }
  std::unique_ptr<ServerLine> line(new ServerLine(
      name, *std::move(socket), *std::move(server), std::move(keeper), *std::move(reply),
      *std::move(doorbell), *std::move(stop), std::move(descriptors[kWriteCountsDescriptor])));
  line->replica_.parameters.push_back(std::move(descriptors[kParametersDescriptor]));
  line->replica_.gradients.push_back(std::move(descriptors[kGradientsDescriptor]));
  return line;
}

ServerLine::ServerLine(std::string name, std::unique_ptr<LocalSocket> socket, ProcessHandle server,
                       absl::optional<ProcessHandle> keeper, AttachReply reply, Doorbell doorbell,
                       StopEvent stop, UniqueFd write_counts)
    : process_(getpid()),
      name_(std::move(name)),
      socket_(std::move(socket)),
      server_(std::move(server)),
      keeper_(std::move(keeper)),
      reply_(std::move(reply)),
      doorbell_(std::move(doorbell)),
      stop_(std::move(stop)),
      write_counts_(std::move(write_counts)),
      watcher_([this] { Watch(); }) {}

ServerLine::~ServerLine() {
  if (getpid() != process_) {
    // A forked child has no such thread, and its parent is still attached.
    watcher_.detach();
    return;
  }
  Detach();
}

void ServerLine::Detach() {
  // A forked child's parent is still attached.
  if (getpid() != process_ || !watcher_.joinable()) return;
  stop_.Signal();
  watcher_.join();
  socket_->HangUp();
}

void ServerLine::SetWrites(std::shared_ptr<const TrainerWrites> writes) {
  absl::MutexLock lock(&mutex_);
  writes_ = std::move(writes);
}

WriteCount ServerLine::writes() const {
  absl::MutexLock lock(&mutex_);
  if (writes_ == nullptr) return {~uint64_t{0}, true};
  // In this order: whoever hears that they are expected knows of the first one.
  const bool are_expected = writes_->are_expected();
  return {writes_->count(), are_expected};
}

absl::StatusOr<ServerLine::Added> ServerLine::AddGroups(Rank rank, const AddGroupsRequest& request,
                                                        absl::Time deadline) {
  absl::Status sent = socket_->Send(EncodeAddGroupsRequest(request), {}, deadline);
  Answer answer;
  {
    absl::MutexLock lock(&mutex_);
    const auto answered = [this] {
      mutex_.AssertReaderHeld();
      return answer_.has_value() || !gone_.ok();
    };
    // Who could not send will see the server go.
    mutex_.AwaitWithTimeout(absl::Condition(&answered), deadline - Now());
    if (!answer_.has_value()) {
      if (!gone_.ok()) return gone_;
      if (!sent.ok()) return errors::WithContext(sent, name_);
      return absl::DeadlineExceededError(
          absl::StrCat(name_, " has not answered to a request for param groups"));
    }
    answer = *std::move(answer_);
    answer_.reset();
  }
  Added added;
  added.reply = std::move(answer.reply);
  if (!added.reply.status.ok()) return added;
  if (answer.descriptors.size() != kGroupsDescriptors) {
    return absl::InternalError(
        absl::StrFormat("%s sent %d descriptors of param groups, expected %d", name_,
                        answer.descriptors.size(), kGroupsDescriptors));
  }
  absl::StatusOr<Doorbell> doorbell = Doorbell::Attach(
      rank, DoorbellShapeOf(request.spec), std::move(answer.descriptors[kDoorbellDescriptor]));
  if (!doorbell.ok()) return errors::WithContext(doorbell.status(), name_);
  added.replica.parameters.push_back(std::move(answer.descriptors[kParametersDescriptor]));
  added.replica.gradients.push_back(std::move(answer.descriptors[kGradientsDescriptor]));
  absl::MutexLock lock(&mutex_);
  doorbell_ = *std::move(doorbell);
  return added;
}

absl::Status ServerLine::gone() const {
  absl::MutexLock lock(&mutex_);
  if (gone_.ok() || said_goodbye_ || !keeper_.has_value() || !keeper_->Gone()) return gone_;
  return absl::UnavailableError(
      absl::StrCat(gone_.message(), ", and its keeper (process ", keeper_->pid(),
                   ") has ended, too: the state of its ranks is lost; start the job anew"));
}

bool ServerLine::comes_back() const {
  absl::MutexLock lock(&mutex_);
  return keeper_.has_value() && !keeper_->Gone() && !said_goodbye_;
}

void ServerLine::Watch() {
  absl::Status gone;
  bool said_goodbye = false;
  bool is_asked = true;  // for the trainer's writes
  while (gone.ok()) {
    pollfd watched[] = {
        {stop_.fd(), POLLIN, 0},
        {server_.fd(), POLLIN, 0},
        {socket_->fd(), POLLIN | POLLRDHUP, 0},
        {is_asked ? write_counts_.get() : -1, POLLIN, 0},
    };
    PollUntil(absl::MakeSpan(watched), absl::InfiniteFuture());
    if (watched[0].revents != 0) return;
    if (watched[3].revents != 0) {
      is_asked = AnswerWriteCounts(write_counts_.get(), [this] { return writes(); });
    }
    if (watched[1].revents == 0 && watched[2].revents == 0) continue;
    // It says why before it hangs up.
    absl::StatusOr<LocalSocket::Message> message =
        socket_->Receive(watched[2].revents != 0 ? Now() + kGoodbyeTimeout : Now());
    if (message.ok()) {
      absl::StatusOr<ServerMessage> said = DecodeServerMessage(message->bytes);
      if (said.ok() && said->groups_added.has_value()) {
        absl::MutexLock lock(&mutex_);
        answer_ = Answer{*std::move(said->groups_added), std::move(message->descriptors)};
        continue;
      }
      gone = errors::WithContext(said.ok() ? *said->goodbye : said.status(), name_);
      said_goodbye = true;
    } else if (watched[1].revents != 0) {
      gone = absl::UnavailableError(absl::StrCat(name_, " has ended"));
    } else {
      gone = absl::UnavailableError(absl::StrCat(name_, " has hung up"));
    }
  }
  absl::MutexLock lock(&mutex_);
  gone_ = std::move(gone);
  said_goodbye_ = said_goodbye;
  doorbell_.WakeTrainer();
}

}  // namespace optshard
