#include "common/dataplane/shm/shm_peers.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/clock.h"
#include "common/errors.h"

namespace optshard {
namespace {

// What a rank says first, with the descriptors of its mailbox, of its parameters and of its
// gradients, as far as it has them; of these one for each admission of the layout. What does not go
// with one message follows with further ones.
struct Greeting {
  uint64_t generation = 0;
  Rank rank = -1;
  int32_t world_size = 0;
  uint32_t has_parameters = 0;
  uint32_t has_gradients = 0;
};

SegmentLabel MailboxLabel(const ShmPlaneOptions& options, Rank rank) {
  SegmentLabel label;
  label.kind = SegmentKind::kMailbox;
  label.rank = rank;
  label.generation = options.generation;
  return label;
}

// Random, so that no process of another job has taken the name. Both ends check each other's user.
LocalAddress NewAddress(Rank rank) {
  std::random_device random;
  return absl::StrFormat("@optshard-plane-%d-%d-%08x%08x", getpid(), rank, random(), random());
}

std::string Key(Rank rank) { return absl::StrCat("shm/", rank); }

std::vector<Rank> RanksOf(const ShmPlaneOptions& options) {
  if (!options.ranks.empty()) return options.ranks;
  std::vector<Rank> all(options.world_size);
  std::iota(all.begin(), all.end(), 0);
  return all;
}

constexpr absl::string_view kMore = "more descriptors of a greeting";

// Null where there was no plane before that gave access to the rank's memory.
const ReplicaSegments* SegmentsBefore(const ShmPlaneOptions& options, Rank rank) {
  if (options.before == nullptr) return nullptr;
  const auto& segments = options.before->segments;
  return static_cast<size_t>(rank) < segments.size() ? segments[rank].get() : nullptr;
}

void Append(const std::vector<int>& from, std::vector<int>* to) {
  to->insert(to->end(), from.begin(), from.end());
}

absl::Status Came(absl::Status status, Rank peer) {
  if (status.ok()) return status;
  if (absl::IsDeadlineExceeded(status)) {
    return errors::PeersTimedOut({peer}, "connecting the shared-memory plane");
  }
  if (absl::IsUnavailable(status)) {
    return errors::PeerLost(peer,
                            absl::StrCat("connecting the shared-memory plane: ", status.message()));
  }
  return errors::WithContext(status, absl::StrCat("connecting to rank ", peer));
}

}  // namespace

ShmPeers::ShmPeers(const ShmPlaneOptions& options, StopEvent stop)
    : rank_(options.rank),
      ranks_(RanksOf(options)),
      process_(getpid()),
      peers_(options.world_size),
      mailboxes_(options.world_size),
      stop_(std::move(stop)) {}

absl::StatusOr<std::unique_ptr<ShmPeers>> ShmPeers::Connect(const ShmPlaneOptions& options) {
  absl::StatusOr<StopEvent> stop = StopEvent::Create();
  if (!stop.ok()) return stop.status();
  std::unique_ptr<ShmPeers> peers(new ShmPeers(options, *std::move(stop)));
  Peer& own = peers->peers_[options.rank];
  absl::StatusOr<Segment> mailbox =
      Segment::Create(MailboxLabel(options, options.rank), Mailbox::Bytes(options.world_size),
                      absl::StrCat("the mailbox of rank ", options.rank));
  if (!mailbox.ok()) return mailbox.status();
  own.mailbox = *std::move(mailbox);
  own.replica = options.replica;
  absl::Status met = peers->Meet(options);
  if (!met.ok()) return met;
  own.mailbox.CloseDescriptor();
  for (const Rank rank : peers->ranks()) {
    peers->mailboxes_[rank] = Mailbox(peers->peers_[rank].mailbox.data());
  }
  peers->CollectReplicas();
  return peers;
}

ShmPeers::~ShmPeers() {
  StopWatching();
  if (in_forked_child()) return;
  for (Peer& peer : peers_) {
    if (peer.socket != nullptr) peer.socket->HangUp();
  }
}

bool ShmPeers::in_forked_child() const { return getpid() != process_; }

absl::Status ShmPeers::Meet(const ShmPlaneOptions& options) {
  if (ranks_.size() == 1) return absl::OkStatus();
  absl::StatusOr<std::unique_ptr<LocalListener>> listener =
      LocalListener::Listen(NewAddress(rank_));
  if (!listener.ok()) return listener.status();
  absl::Status put = options.rendezvous->Put(Key(rank_), (*listener)->address());
  if (!put.ok()) return put;

  std::vector<std::pair<Rank, std::unique_ptr<LocalSocket>>> lower;
  for (const Rank peer : ranks_) {
    if (peer >= rank_) break;
    absl::StatusOr<std::string> address = options.rendezvous->Get(Key(peer), options.deadline);
    if (!address.ok()) {
      return absl::IsDeadlineExceeded(address.status()) ? Came(address.status(), peer)
                                                        : address.status();
    }
    absl::StatusOr<std::unique_ptr<LocalSocket>> socket =
        LocalSocket::Connect(*address, options.deadline);
    if (!socket.ok()) return Came(socket.status(), peer);
    absl::Status greeted = Greet(options, **socket);
    if (!greeted.ok()) return Came(greeted, peer);
    lower.emplace_back(peer, *std::move(socket));
  }
  absl::Status accepted = AcceptHigherRanks(options, **listener);
  if (!accepted.ok()) return accepted;
  for (auto& [peer, socket] : lower) {
    absl::Status came = ReceiveGreeting(options, std::move(socket), peer);
    if (!came.ok()) return Came(came, peer);
  }
  return absl::OkStatus();
}

absl::Status ShmPeers::AcceptHigherRanks(const ShmPlaneOptions& options, LocalListener& listener) {
  const auto missing = [this] {
    std::vector<Rank> ranks;
    for (const Rank peer : ranks_) {
      if (peer > rank_ && peers_[peer].socket == nullptr) ranks.push_back(peer);
    }
    return ranks;
  };
  while (!missing().empty()) {
    absl::StatusOr<std::unique_ptr<LocalSocket>> socket = listener.Accept(options.deadline);
    if (!socket.ok()) {
      return absl::IsDeadlineExceeded(socket.status())
                 ? errors::PeersTimedOut(missing(), "connecting the shared-memory plane")
                 : socket.status();
    }
    // Anybody may find the address. A process of another user, or one that hangs up again, is not a
    // peer.
    if (!(*socket)->CheckPeerUser().ok()) continue;
    absl::Status came = ReceiveGreeting(options, *std::move(socket), -1);
    if (absl::IsDeadlineExceeded(came)) {
      return errors::PeersTimedOut(missing(), "greeting in the shared-memory plane");
    }
    if (!came.ok() && (!absl::IsUnavailable(came) || errors::IsPeerLost(came))) return came;
  }
  for (const Rank peer : ranks_) {
    if (peer <= rank_) continue;
    absl::Status greeted = Greet(options, *peers_[peer].socket);
    if (!greeted.ok()) return Came(greeted, peer);
  }
  return absl::OkStatus();
}

absl::Status ShmPeers::Greet(const ShmPlaneOptions& options, LocalSocket& socket) {
  Greeting greeting;
  greeting.generation = options.generation;
  greeting.rank = rank_;
  greeting.world_size = options.world_size;
  std::vector<int> descriptors = {peers_[rank_].mailbox.fd()};
  if (options.replica != nullptr) {
    greeting.has_gradients = 1;
    if (options.replica->has_parameters()) {
      greeting.has_parameters = 1;
      Append(options.replica->parameters_fds(), &descriptors);
    }
    Append(options.replica->gradients_fds(), &descriptors);
  }
  absl::string_view bytes(reinterpret_cast<const char*>(&greeting), sizeof greeting);
  absl::Span<const int> unsent = descriptors;
  absl::Status sent;
  while (sent.ok() && !unsent.empty()) {
    const absl::Span<const int> now = unsent.subspan(0, LocalSocket::kMaxDescriptors);
    sent = socket.Send(bytes, now, options.deadline);
    unsent.remove_prefix(now.size());
    bytes = kMore;
  }
  return sent;
}

absl::Status ShmPeers::ReceiveGreeting(const ShmPlaneOptions& options,
                                       std::unique_ptr<LocalSocket> socket, Rank expected) {
  absl::StatusOr<PeerCredentials> credentials = socket->Peer();
  if (!credentials.ok()) return credentials.status();
  absl::StatusOr<LocalSocket::Message> message = socket->Receive(options.deadline);
  if (!message.ok()) return message.status();
  Greeting greeting;
  if (message->bytes.size() != sizeof greeting) {
    return absl::InternalError(absl::StrFormat("a greeting of %d bytes, expected %d",
                                               message->bytes.size(), sizeof greeting));
  }
  std::memcpy(&greeting, message->bytes.data(), sizeof greeting);
  const size_t admissions = options.layout == nullptr ? 1 : options.layout->admission_count();
  const size_t parameters = greeting.has_parameters != 0 ? admissions : 0;
  const size_t gradients = greeting.has_gradients != 0 ? admissions : 0;
  while (message->descriptors.size() % LocalSocket::kMaxDescriptors == 0 &&
         message->descriptors.size() < 1 + parameters + gradients) {
    absl::StatusOr<LocalSocket::Message> more = socket->Receive(options.deadline);
    if (!more.ok()) return more.status();
    if (more->bytes != kMore || more->descriptors.empty()) break;
    for (UniqueFd& each : more->descriptors) message->descriptors.push_back(std::move(each));
  }
  const Rank lowest = expected < 0 ? rank_ + 1 : expected;
  const Rank highest = expected < 0 ? world_size() - 1 : expected;
  if (greeting.generation != options.generation || greeting.world_size != world_size() ||
      greeting.rank < lowest || greeting.rank > highest ||
      !std::binary_search(ranks_.begin(), ranks_.end(), greeting.rank) ||
      peers_[greeting.rank].socket != nullptr ||
      message->descriptors.size() != 1 + parameters + gradients) {
    return absl::InternalError(absl::StrFormat(
        "process %d greets as rank %d of %d in generation %d with %d descriptors; expected one of "
        "the ranks %d to %d of %d in generation %d, once",
        credentials->pid, greeting.rank, greeting.world_size, greeting.generation,
        message->descriptors.size(), lowest, highest, world_size(), options.generation));
  }

  Peer& peer = peers_[greeting.rank];
  const std::string name = absl::StrCat("the mailbox of rank ", greeting.rank);
  absl::StatusOr<Segment> mailbox =
      Segment::Attach(std::move(message->descriptors[0]), MailboxLabel(options, greeting.rank),
                      Mailbox::Bytes(world_size()), name);
  if (!mailbox.ok()) return mailbox.status();
  mailbox->CloseDescriptor();
  peer.mailbox = *std::move(mailbox);
  if (greeting.has_gradients != 0 && options.replica != nullptr) {
    ReplicaSegments::Descriptors descriptors;
    for (size_t i = 1; i < message->descriptors.size(); ++i) {
      (i <= parameters ? descriptors.parameters : descriptors.gradients)
          .push_back(std::move(message->descriptors[i]));
    }
    const ReplicaSegments* before = SegmentsBefore(options, greeting.rank);
    if (before != nullptr) {
      const absl::StatusOr<bool> own = before->TakeOwn(&descriptors);
      if (!own.ok()) return own.status();
      if (!*own) before = nullptr;
    }
    absl::StatusOr<std::shared_ptr<const ReplicaSegments>> replica = ReplicaSegments::Attach(
        *options.layout, greeting.rank, std::move(descriptors), absl::nullopt, before);
    if (!replica.ok()) return replica.status();
    peer.replica = *std::move(replica);
  }
  if (credentials->pid != getpid()) {
    absl::StatusOr<ProcessHandle> process = ProcessHandle::Open(credentials->pid);
    if (absl::IsNotFound(process.status())) {
      return errors::PeerLost(greeting.rank, "its process has ended");
    }
    if (!process.ok()) return process.status();
    peer.process = *std::move(process);
  }
  peer.socket = std::move(socket);
  return absl::OkStatus();
}

void ShmPeers::CollectReplicas() {
  const ReplicaSegments* with_parameters = nullptr;  // of the lowest rank that has some
  bool all_give_theirs = true;
  for (const Rank rank : ranks_) {
    const Peer& peer = peers_[rank];
    if (peer.replica == nullptr) {
      all_give_theirs = false;
    } else if (with_parameters == nullptr && peer.replica->has_parameters()) {
      with_parameters = peer.replica.get();
    }
  }
  if (!all_give_theirs || with_parameters == nullptr) {
    // Nobody uses them: their memory is worth more elsewhere.
    for (Peer& peer : peers_) peer.replica.reset();
    return;
  }
  PeerReplicas replicas;
  for (const Peer& peer : peers_) {
    replicas.segments.push_back(peer.replica);
    std::vector<ReplicaRegion> regions;
    if (peer.replica != nullptr) regions = peer.replica->regions();
    for (size_t r = 0; r < regions.size() && !peer.replica->has_parameters(); ++r) {
      regions[r].parameters = with_parameters->regions()[r].parameters;
    }
    replicas.regions.push_back(std::move(regions));
  }
  replicas_ = std::move(replicas);
}

void ShmPeers::Watch(std::function<void(Rank peer)> gone) {
  if (ranks_.size() == 1) return;
  watcher_ = std::thread([this, gone = std::move(gone)] { WatchUntilStopped(gone); });
}

void ShmPeers::StopWatching() {
  if (!watcher_.joinable()) return;
  if (in_forked_child()) return watcher_.detach();  // it runs in the parent only
  stop_.Signal();
  watcher_.join();
}

void ShmPeers::WatchUntilStopped(const std::function<void(Rank peer)>& gone) {
  std::vector<pollfd> watched = {{stop_.fd(), POLLIN, 0}};
  std::vector<Rank> ranks = {rank_};
  for (const Rank rank : ranks_) {
    if (rank == rank_) continue;
    watched.push_back({peers_[rank].socket->fd(), POLLRDHUP, 0});
    ranks.push_back(rank);
    if (!peers_[rank].process.has_value()) continue;
    watched.push_back({peers_[rank].process->fd(), POLLIN, 0});
    ranks.push_back(rank);
  }
  while (true) {
    // No deadline: it watches as long as there is a plane.
    if (poll(watched.data(), watched.size(), -1) < 0) continue;
    if (watched[0].revents != 0) return;
    for (size_t i = 1; i < watched.size(); ++i) {
      if (watched[i].revents == 0) continue;
      const Rank rank = ranks[i];
      // A negative descriptor is not watched any more.
      for (size_t j = 1; j < watched.size(); ++j) {
        if (ranks[j] == rank) watched[j].fd = -1;
      }
      gone(rank);
    }
  }
}

}  // namespace optshard
