#include "common/dataplane/gloo/tcp_peers.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/clock.h"
#include "common/errors.h"
#include "common/link/poll_until.h"

namespace optshard {
namespace {

constexpr absl::string_view kConnecting = "connecting the data plane over TCP";

// How many connections beyond those of all ranks may owe their greeting. Somebody who connects and
// says nothing must neither keep the others out nor use up the descriptors.
constexpr size_t kMostStrangers = 16;

// Where a rank listens, and what to say there.
struct Address {
  sockaddr_storage socket = {};
  socklen_t bytes = 0;
  uint64_t secret[2] = {};
};

// The first thing that a connecting rank sends.
struct Greeting {
  uint64_t secret[2] = {};
  Rank rank = -1;
  int32_t world_size = 0;
};

absl::Status Failed(const char* what) {
  const std::string text = absl::StrCat(kConnecting, ": ", what, ": ", strerror(errno));
  if (errno == EMFILE || errno == ENFILE) return absl::ResourceExhaustedError(text);
  return absl::UnavailableError(text);
}

socklen_t BytesOf(sa_family_t family) {
  return family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
}

// The network is an interface or a numeric address of one; port 0.
absl::StatusOr<Address> AddressOn(const std::string& network) {
  Address address;
  auto* const v4 = reinterpret_cast<sockaddr_in*>(&address.socket);
  auto* const v6 = reinterpret_cast<sockaddr_in6*>(&address.socket);
  if (inet_pton(AF_INET, network.c_str(), &v4->sin_addr) == 1) {
    address.socket.ss_family = AF_INET;
  } else if (inet_pton(AF_INET6, network.c_str(), &v6->sin6_addr) == 1) {
    address.socket.ss_family = AF_INET6;
  } else {
    ifaddrs* all = nullptr;
    if (getifaddrs(&all) != 0) return Failed("getifaddrs");
    const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(all, &freeifaddrs);
    // The first one, as Gloo does.
    for (const ifaddrs* one = all; one != nullptr; one = one->ifa_next) {
      if (one->ifa_addr == nullptr || network != one->ifa_name) continue;
      const sa_family_t family = one->ifa_addr->sa_family;
      if (family != AF_INET && family != AF_INET6) continue;
      std::memcpy(&address.socket, one->ifa_addr, BytesOf(family));
      break;
    }
  }
  if (address.socket.ss_family == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("there is no network interface or address \"", network, "\""));
  }
  address.bytes = BytesOf(address.socket.ss_family);
  return address;
}

UniqueFd NewSocket(int family) {
  return UniqueFd(socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

void SendWithoutDelay(const UniqueFd& socket) {
  const int on = 1;
  setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

std::string KeyOf(Generation generation, Rank rank) {
  return absl::StrCat("tcp/", generation, "/", rank);
}

// The value of a rendezvous key: the socket's name without what no family of addresses needs, and
// the secret.
std::string Encode(const Address& address) {
  std::string text(reinterpret_cast<const char*>(&address.socket), address.bytes);
  return text.append(reinterpret_cast<const char*>(address.secret), sizeof(address.secret));
}

absl::StatusOr<Address> Decode(absl::string_view text, Rank of) {
  Address address;
  if (text.size() > sizeof(address.secret) + sizeof(sa_family_t) &&
      text.size() <= sizeof(address.secret) + sizeof(address.socket)) {
    address.bytes = static_cast<socklen_t>(text.size() - sizeof(address.secret));
    std::memcpy(&address.socket, text.data(), address.bytes);
    std::memcpy(address.secret, text.data() + address.bytes, sizeof(address.secret));
    const sa_family_t family = address.socket.ss_family;
    if ((family == AF_INET || family == AF_INET6) && address.bytes == BytesOf(family)) {
      return address;
    }
  }
  return absl::InternalError(absl::StrCat(kConnecting, ": the address of rank ", of, " has ",
                                          text.size(), " bytes, and is none of IPv4 or IPv6"));
}

// Listens, and makes the address complete.
absl::StatusOr<UniqueFd> Listen(const GlooPlaneOptions& options, Address* address) {
  absl::StatusOr<Address> local = AddressOn(options.network);
  if (!local.ok()) return local.status();
  *address = *local;
  UniqueFd listener = NewSocket(address->socket.ss_family);
  if (!listener.valid()) return Failed("socket");
  auto* const name = reinterpret_cast<sockaddr*>(&address->socket);
  if (bind(listener.get(), name, address->bytes) != 0) return Failed("bind");
  if (listen(listener.get(), options.world_size) != 0) return Failed("listen");
  if (getsockname(listener.get(), name, &address->bytes) != 0) return Failed("getsockname");
  if (getrandom(address->secret, sizeof(address->secret), 0) != sizeof(address->secret)) {
    return Failed("getrandom");
  }
  return listener;
}

// Of connect(): that a link is down somewhere, or has just come up again.
bool MayBeReachedLater(int error) {
  return error == EHOSTUNREACH || error == ENETUNREACH || error == EHOSTDOWN || error == ENETDOWN ||
         error == ETIMEDOUT;
}

// Between two looks at what keeps the peer away. An error where it is not waited for any longer.
absl::Status CheckWorthWaiting(Rank peer, absl::string_view why, const GlooPlaneOptions& options) {
  if (Clock::Monotonic().Now() >= options.deadline) {
    return errors::PeersTimedOut({peer}, absl::StrCat(kConnecting, why));
  }
  return LookAtGroup(options);
}

// Returns what connect() says in the end: 0, or an errno.
absl::StatusOr<int> Connect(const UniqueFd& connection, Rank peer, const Address& address,
                            const GlooPlaneOptions& options) {
  const auto* const name = reinterpret_cast<const sockaddr*>(&address.socket);
  if (connect(connection.get(), name, address.bytes) == 0) return 0;
  if (errno != EINPROGRESS) return errno;
  while (true) {
    const absl::Time look = Clock::Monotonic().Now() + kGroupLookInterval;
    if (PollUntil(connection.get(), POLLOUT, std::min(look, options.deadline))) break;
    absl::Status wait = CheckWorthWaiting(peer, "", options);
    if (!wait.ok()) return wait;
  }
  int error = 0;
  socklen_t bytes = sizeof(error);
  getsockopt(connection.get(), SOL_SOCKET, SO_ERROR, &error, &bytes);
  return error;
}

absl::StatusOr<UniqueFd> ConnectTo(Rank peer, const Address& address,
                                   const GlooPlaneOptions& options) {
  Greeting greeting;
  std::copy(std::begin(address.secret), std::end(address.secret), greeting.secret);
  greeting.rank = options.rank;
  greeting.world_size = options.world_size;
  while (true) {
    UniqueFd connection = NewSocket(address.socket.ss_family);
    if (!connection.valid()) return Failed("socket");
    const absl::StatusOr<int> error = Connect(connection, peer, address, options);
    if (!error.ok()) return error.status();
    errno = *error;
    // The first bytes of a connection always have room.
    if (*error == 0 && send(connection.get(), &greeting, sizeof(greeting), MSG_NOSIGNAL) ==
                           static_cast<ssize_t>(sizeof(greeting))) {
      SendWithoutDelay(connection);
      return connection;
    }
    if (!MayBeReachedLater(*error)) return errors::PeerLost(peer, Failed("connect").message());
    absl::SleepFor(
        std::min(kGroupLookInterval,
                 std::max(options.deadline - Clock::Monotonic().Now(), absl::ZeroDuration())));
    absl::Status wait = CheckWorthWaiting(peer, absl::StrCat(": ", strerror(*error)), options);
    if (!wait.ok()) return wait;
  }
}

// Waits until the rank listens.
absl::StatusOr<Address> AddressOf(Rank peer, const GlooPlaneOptions& options) {
  const absl::StatusOr<std::string> found =
      options.rendezvous->Get(KeyOf(options.generation, peer), options.deadline);
  if (absl::IsDeadlineExceeded(found.status())) return errors::PeersTimedOut({peer}, kConnecting);
  if (!found.ok()) return errors::WithContext(found.status(), kConnecting);
  return Decode(*found, peer);
}

// Somebody who has connected and owes the greeting, or the rest of it.
struct Caller {
  UniqueFd connection;
  Greeting greeting;
  size_t received = 0;

  bool has_greeted() const { return received == sizeof(greeting); }

  // Reads what has come. Closes a connection that has ended.
  void Receive() {
    const ssize_t got = recv(connection.get(), reinterpret_cast<char*>(&greeting) + received,
                             sizeof(greeting) - received, 0);
    if (got > 0) {
      received += got;
    } else if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
      connection = UniqueFd();
    }
  }
};

// Waits until a caller speaks, whose words are read, or somebody connects. Returns whether somebody
// does.
bool HearCallers(const UniqueFd& listener, absl::Time deadline, std::deque<Caller>* callers) {
  std::vector<pollfd> polled;
  for (const Caller& caller : *callers) polled.push_back({caller.connection.get(), POLLIN, 0});
  polled.push_back({listener.get(), POLLIN, 0});
  if (PollUntil(absl::MakeSpan(polled), deadline) <= 0) return false;
  for (size_t i = 0; i < callers->size(); ++i) {
    if (polled[i].revents != 0) (*callers)[i].Receive();
  }
  return polled.back().revents != 0;
}

// Takes one more caller, and drops the one that owes its greeting longest where there are too many.
// RESOURCE_EXHAUSTED where there are no descriptors left.
absl::Status AcceptCaller(const UniqueFd& listener, int world_size, std::deque<Caller>* callers) {
  UniqueFd connection(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!connection.valid()) {
    return errno == EMFILE || errno == ENFILE ? Failed("accept") : absl::OkStatus();
  }
  if (callers->size() >= world_size + kMostStrangers) callers->pop_front();
  callers->emplace_back();
  callers->back().connection = std::move(connection);
  return absl::OkStatus();
}

// Until all higher ranks have come. Who does not know the secret is none of them. A rank may be
// slow to greet, so that everybody is waited for at once.
absl::Status AcceptHigherRanks(const UniqueFd& listener, const Address& address,
                               const GlooPlaneOptions& options,
                               std::vector<UniqueFd>* connections) {
  const auto missing = [&] {
    std::vector<Rank> ranks;
    for (Rank peer = options.rank + 1; peer < options.world_size; ++peer) {
      if (!(*connections)[peer].valid()) ranks.push_back(peer);
    }
    return ranks;
  };
  std::deque<Caller> callers;  // the first one has waited longest
  absl::Time look = Clock::Monotonic().Now() + kGroupLookInterval;
  while (!missing().empty()) {
    const bool connects = HearCallers(listener, std::min(look, options.deadline), &callers);
    for (Caller& caller : callers) {
      if (!caller.has_greeted()) continue;
      const Greeting& greeting = caller.greeting;
      const bool expected =
          std::equal(std::begin(address.secret), std::end(address.secret), greeting.secret) &&
          greeting.world_size == options.world_size && greeting.rank > options.rank &&
          greeting.rank < options.world_size && !(*connections)[greeting.rank].valid();
      if (expected) {
        SendWithoutDelay(caller.connection);
        (*connections)[greeting.rank] = std::move(caller.connection);
      }
      caller.connection = UniqueFd();
    }
    callers.erase(std::remove_if(callers.begin(), callers.end(),
                                 [](const Caller& caller) { return !caller.connection.valid(); }),
                  callers.end());
    // After those that have greeted are taken: they are not among those that may be dropped.
    if (connects) {
      absl::Status accepted = AcceptCaller(listener, options.world_size, &callers);
      if (!accepted.ok()) return accepted;
    }
    const absl::Time now = Clock::Monotonic().Now();
    if (now < std::min(look, options.deadline)) continue;
    std::vector<Rank> late = missing();
    if (late.empty()) break;
    if (now >= options.deadline) return errors::PeersTimedOut(late, kConnecting);
    // A rank that has failed will not come.
    absl::Status group = LookAtGroup(options);
    if (!group.ok()) return group;
    look = now + kGroupLookInterval;
  }
  return absl::OkStatus();
}

}  // namespace

// Its own address is there for as long as the group works.
absl::Status LookAtGroup(const GlooPlaneOptions& options) {
  absl::Status group = AddressOf(options.rank, options).status();
  return errors::IsPeersTimedOut(group) ? absl::OkStatus() : group;
}

absl::StatusOr<std::vector<UniqueFd>> ConnectTcpPeers(const GlooPlaneOptions& options) {
  Address own;
  absl::StatusOr<UniqueFd> listener = Listen(options, &own);
  if (!listener.ok()) return listener.status();
  const absl::Status put =
      options.rendezvous->Put(KeyOf(options.generation, options.rank), Encode(own));
  if (!put.ok()) return errors::WithContext(put, kConnecting);
  std::vector<UniqueFd> connections(options.world_size);
  for (Rank peer = 0; peer < options.rank; ++peer) {
    absl::StatusOr<Address> address = AddressOf(peer, options);
    if (!address.ok()) return address.status();
    absl::StatusOr<UniqueFd> connection = ConnectTo(peer, *address, options);
    if (!connection.ok()) return connection.status();
    connections[peer] = *std::move(connection);
  }
  const absl::Status accepted = AcceptHigherRanks(*listener, own, options, &connections);
  if (!accepted.ok()) return accepted;
  return connections;
}

}  // namespace optshard
