#include "server/node/attach_server.h"

#include <poll.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/attach/attachment_rpc.h"
#include "common/clock.h"
#include "common/errors.h"
#include "common/link/poll_until.h"
#include "common/log.h"

namespace optshard {
namespace {

// For a trainer to say what it wants, once it has connected, and to take its answer.
constexpr absl::Duration kMessageTimeout = absl::Seconds(10);
constexpr absl::Duration kGoodbyeTimeout = absl::Milliseconds(500);
constexpr absl::Duration kAcceptPause = absl::Milliseconds(100);
// A trainer that is refused may come again at once; so many at a time is no job's.
constexpr size_t kMostConnections = 1024;

absl::Time In(absl::Duration time) { return Clock::Monotonic().Now() + time; }

LogContext Who(Rank rank) {
  LogContext context;
  context.role = "server";
  context.rank = rank;
  return context;
}

bool HungUp(const LocalSocket& socket) {
  pollfd watched = {socket.fd(), POLLRDHUP, 0};
  return poll(&watched, 1, 0) > 0 && watched.revents != 0;
}

}  // namespace

absl::StatusOr<std::unique_ptr<AttachServer>> AttachServer::Start(const LocalAddress& address,
                                                                  NodeOwners* owners) {
  absl::StatusOr<std::unique_ptr<LocalListener>> listener = LocalListener::Listen(address);
  if (!listener.ok()) return listener.status();
  absl::StatusOr<StopEvent> stop = StopEvent::Create();
  if (!stop.ok()) return stop.status();
  return std::unique_ptr<AttachServer>(
      new AttachServer(*std::move(listener), *std::move(stop), owners));
}

AttachServer::AttachServer(std::unique_ptr<LocalListener> listener, StopEvent stop,
                           NodeOwners* owners)
    : listener_(std::move(listener)),
      owners_(owners),
      stop_(std::move(stop)),
      acceptor_([this] { Accept(); }) {}

AttachServer::~AttachServer() { Stop(absl::UnavailableError("the shard server has ended")); }

void AttachServer::StopListening() { listener_->HangUp(); }

void AttachServer::Stop(const absl::Status& reason) {
  {
    absl::MutexLock lock(&mutex_);
    if (!reason_.ok()) return;
    reason_ = reason;
    // Who has not said anything yet would be waited for.
    for (Connection& connection : connections_) {
      if (!connection.asked) connection.socket->HangUp();
    }
  }
  listener_->HangUp();
  stop_.Signal();
  acceptor_.join();
  Reap(true);
}

void AttachServer::Accept() {
  while (true) {
    absl::StatusOr<std::unique_ptr<LocalSocket>> socket = listener_->Accept(absl::InfiniteFuture());
    if (absl::IsUnavailable(socket.status())) return;
    Reap(false);
    {
      absl::MutexLock lock(&mutex_);
      if (!reason_.ok()) return;
      if (socket.ok() && connections_.size() < kMostConnections) {
        Connection& connection = connections_.emplace_back();
        connection.socket = *std::move(socket);
        connection.thread = std::thread([this, &connection] {
          Serve(connection);
          connection.done = true;
        });
        continue;
      }
    }
    Log(LogLevel::kWarning, Who(-1), "cannot take a trainer: %s",
        socket.ok() ? absl::StrCat(kMostConnections, " are connected already")
                    : socket.status().ToString());
    PollUntil(stop_.fd(), POLLIN, In(kAcceptPause));
  }
}

void AttachServer::Reap(bool all) {
  std::list<Connection> done;
  {
    absl::MutexLock lock(&mutex_);
    for (auto next = connections_.begin(); next != connections_.end();) {
      const auto each = next++;
      if (all || each->done) done.splice(done.end(), connections_, each);
    }
  }
  for (Connection& connection : done) connection.thread.join();
}

void AttachServer::Serve(Connection& connection) {
  LocalSocket& socket = *connection.socket;
  absl::StatusOr<NodeOwners::Admission> admission = Admit(connection);
  if (!admission.ok()) {
    Log(LogLevel::kInfo, Who(-1), "refused a trainer: %s", admission.status().ToString());
    socket.Send(EncodeAttachReply(admission.status()), {}, In(kMessageTimeout)).IgnoreError();
    socket.HangUp();
    return;
  }
  const ProcessHandle& process = admission->attachment->process;
  const Rank rank = admission->rank->rank();
  std::vector<int> descriptors = admission->descriptors();
  descriptors.push_back(admission->attachment->write_counts->trainer_fd());
  const absl::Status sent =
      socket.Send(EncodeAttachReply(admission->reply), descriptors, In(kMessageTimeout));
  admission->attachment->write_counts->GiveAway();
  Log(LogLevel::kInfo, Who(rank), "process %d attaches, incarnation %d, after step %d",
      process.pid(), admission->reply.incarnation, admission->reply.finished_step);
  const std::string how = sent.ok() ? ServeUntilGone(socket, *admission)
                                    : absl::StrCat("its trainer, process ", process.pid(),
                                                   ", did not take its answer: ", sent.message());
  admission->rank->Detach(admission->attachment, how);
  socket.HangUp();
  Log(LogLevel::kInfo, Who(rank), "%s", how);
}

absl::StatusOr<NodeOwners::Admission> AttachServer::Admit(Connection& connection) {
  LocalSocket& socket = *connection.socket;
  absl::Status user = socket.CheckPeerUser();
  if (!user.ok()) return errors::WithContext(user, "attaching to the shard server");
  absl::StatusOr<PeerCredentials> peer = socket.Peer();
  if (!peer.ok()) return peer.status();
  absl::StatusOr<ProcessHandle> process = ProcessHandle::Open(peer->pid);
  if (!process.ok()) return process.status();
  absl::StatusOr<LocalSocket::Message> message = socket.Receive(In(kMessageTimeout));
  if (!message.ok()) return message.status();
  connection.asked = true;
  absl::StatusOr<AttachRequest> request = DecodeAttachRequest(message->bytes);
  if (!request.ok()) return request.status();
  return owners_->Attach(*request, *std::move(process),
                         [this, &socket] { return StillHere(socket); });
}

bool AttachServer::StillHere(const LocalSocket& socket) {
  if (HungUp(socket)) return false;
  absl::MutexLock lock(&mutex_);
  return reason_.ok();
}

// How it went, for people.
std::string AttachServer::ServeUntilGone(LocalSocket& socket,
                                         const NodeOwners::Admission& admission) {
  const ProcessHandle& process = admission.attachment->process;
  pollfd watched[] = {
      {stop_.fd(), POLLIN, 0},
      {process.fd(), POLLIN, 0},
      // A forked child may keep the socket of its dead parent open: the process itself decides.
      {socket.fd(), POLLIN | POLLRDHUP, 0},
  };
  do {
    PollUntil(absl::MakeSpan(watched), absl::InfiniteFuture());
  } while (watched[0].revents == 0 && watched[1].revents == 0 && AnswerRequest(socket, admission));
  const std::string name = absl::StrCat("its trainer, process ", process.pid(), ",");
  if (watched[1].revents != 0) return absl::StrCat(name, " has ended");
  if (watched[2].revents != 0) return absl::StrCat(name, " has detached");
  absl::Status reason;
  {
    absl::MutexLock lock(&mutex_);
    reason = reason_;
  }
  socket.Send(EncodeGoodbye(reason), {}, In(kGoodbyeTimeout)).IgnoreError();
  return absl::StrCat(name, " was sent away: ", reason.message());
}

// False where there is none: the trainer has hung up.
bool AttachServer::AnswerRequest(LocalSocket& socket, const NodeOwners::Admission& admission) {
  const absl::StatusOr<LocalSocket::Message> message = socket.Receive(In(kMessageTimeout));
  if (!message.ok()) return false;
  AddGroupsReply reply;
  std::vector<int> descriptors;
  const absl::StatusOr<AddGroupsRequest> request = DecodeAddGroupsRequest(message->bytes);
  if (request.ok()) {
    reply = admission.rank->AddGroups(admission.attachment, *request,
                                      [this, &socket] { return StillHere(socket); });
    if (reply.status.ok()) {
      descriptors = admission.descriptors(request->spec.space.admission_count());
    }
  } else {
    reply.status = request.status();
  }
  return socket.Send(EncodeAddGroupsReply(reply), descriptors, In(kMessageTimeout)).ok();
}

}  // namespace optshard
