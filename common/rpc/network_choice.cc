#include "common/rpc/network_choice.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <memory>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace optshard {
namespace {

// The address of this end of a datagram socket that is connected to `peer`; empty where no route
// leads there. Connecting a datagram socket sends nothing.
std::string LocalEnd(const addrinfo& peer) {
  const int descriptor = socket(peer.ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (descriptor < 0) return "";
  sockaddr_storage local = {};
  socklen_t length = sizeof local;
  auto* const address = reinterpret_cast<sockaddr*>(&local);
  char text[NI_MAXHOST] = "";
  if (connect(descriptor, peer.ai_addr, peer.ai_addrlen) == 0 &&
      getsockname(descriptor, address, &length) == 0 &&
      getnameinfo(address, length, text, sizeof text, nullptr, 0, NI_NUMERICHOST) != 0) {
    text[0] = '\0';
  }
  close(descriptor);
  return text;
}

// Documentation prefixes (RFC 5737, RFC 3849): nobody has them, so that only a default route leads
// there.
constexpr const char* kBeyondTheDefaultRoute[] = {"192.0.2.1:9", "[2001:db8::1]:9"};

bool IsLoopback(const std::string& address) {
  return absl::StartsWith(address, "127.") || address == "::1";
}

bool IsLinkLocal(const std::string& address) {
  return absl::StartsWith(address, "169.254.") || absl::StartsWith(address, "fe80:");
}

// Whether a numeric address, an IPv6 one in brackets or not, stands for all addresses of the host.
bool IsWildcard(const std::string& host) {
  const std::string bare(absl::StripSuffix(absl::StripPrefix(host, "["), "]"));
  in_addr four;
  if (inet_pton(AF_INET, bare.c_str(), &four) == 1) return four.s_addr == htonl(INADDR_ANY);
  in6_addr six;
  return inet_pton(AF_INET6, bare.c_str(), &six) == 1 && IN6_IS_ADDR_UNSPECIFIED(&six);
}

// An IPv6 address in brackets, as it stands before a port.
std::string BeforePort(const std::string& address) {
  return absl::StrContains(address, ':') ? absl::StrCat("[", address, "]") : address;
}

void AddOnce(const std::string& address, std::vector<std::string>& addresses) {
  if (address.empty() || IsLoopback(address) || IsLinkLocal(address)) return;
  if (std::find(addresses.begin(), addresses.end(), address) == addresses.end()) {
    addresses.push_back(address);
  }
}

std::string NumericText(const sockaddr& address) {
  const socklen_t length =
      address.sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
  char text[NI_MAXHOST] = "";
  return getnameinfo(&address, length, text, sizeof text, nullptr, 0, NI_NUMERICHOST) == 0 ? text
                                                                                           : "";
}

}  // namespace

absl::StatusOr<std::string> AddressTowards(const std::string& peer) {
  const size_t colon = peer.rfind(':');
  if (colon == std::string::npos || colon == 0 || colon + 1 == peer.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", peer, "\" is not an address: expected HOST:PORT"));
  }
  const std::string host(absl::StripSuffix(absl::StripPrefix(peer.substr(0, colon), "["), "]"));
  addrinfo hints = {};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), peer.c_str() + colon + 1, &hints, &found);
  if (error != 0) {
    return absl::UnavailableError(
        absl::StrCat("the host of ", peer, " is not known: ", gai_strerror(error)));
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> peers(found, &freeaddrinfo);
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    std::string local = LocalEnd(*each);
    if (!local.empty()) return local;
  }
  return absl::UnavailableError(absl::StrCat("no route leads to ", peer));
}

std::vector<std::string> HostAddresses() {
  std::vector<std::string> addresses;
  for (const char* peer : kBeyondTheDefaultRoute) {
    const absl::StatusOr<std::string> towards = AddressTowards(peer);
    if (towards.ok()) AddOnce(*towards, addresses);
  }
  ifaddrs* found = nullptr;
  if (getifaddrs(&found) != 0) return addresses;
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> interfaces(found, &freeifaddrs);
  for (const int family : {AF_INET, AF_INET6}) {
    for (const ifaddrs* each = found; each != nullptr; each = each->ifa_next) {
      if (each->ifa_addr == nullptr || each->ifa_addr->sa_family != family) continue;
      if ((each->ifa_flags & IFF_UP) != 0) AddOnce(NumericText(*each->ifa_addr), addresses);
    }
  }
  return addresses;
}

std::string ListenTowards(const std::string& towards_peers) {
  return absl::StrCat(BeforePort(towards_peers), ":0");
}

std::string ReachableAddress(const std::string& listen, int port, const std::string& towards_peers,
                             absl::Span<const std::string> host_addresses) {
  std::string host = listen.substr(0, listen.rfind(':'));
  if (IsWildcard(host)) {
    host = IsLoopback(towards_peers) && !host_addresses.empty() ? host_addresses[0] : towards_peers;
    host = BeforePort(host);
  }
  return absl::StrCat(host, ":", port);
}

}  // namespace optshard
