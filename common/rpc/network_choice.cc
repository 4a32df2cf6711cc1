#include "common/rpc/network_choice.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
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
      getsockname(descriptor, address, &length) == 0) {
    if (getnameinfo(address, length, text, sizeof text, nullptr, 0, NI_NUMERICHOST) != 0) {
      text[0] = '\0';
    }
  }
  close(descriptor);
  return text;
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

std::string ReachableAddress(const std::string& listen, int port, const std::string& own_address) {
  std::string host = listen.substr(0, listen.rfind(':'));
  if (host == "0.0.0.0" || host == "[::]") {
    host = absl::StrContains(own_address, ':') ? absl::StrCat("[", own_address, "]") : own_address;
  }
  return absl::StrCat(host, ":", port);
}

}  // namespace optshard
