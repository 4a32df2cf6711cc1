#include "tools/launcher/host_port.h"

#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/link/unique_fd.h"

namespace optshard {
namespace {

constexpr int kPatienceMs = 200;

// 0, or why there is no connection to this address.
int Connect(const addrinfo& to) {
  const UniqueFd descriptor(
      socket(to.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, to.ai_protocol));
  if (!descriptor.valid()) return errno;
  if (connect(descriptor.get(), to.ai_addr, to.ai_addrlen) == 0) return 0;
  if (errno != EINPROGRESS) return errno;
  pollfd connected = {descriptor.get(), POLLOUT, 0};
  if (poll(&connected, 1, kPatienceMs) != 1) return ETIMEDOUT;
  int error = 0;
  socklen_t size = sizeof error;
  getsockopt(descriptor.get(), SOL_SOCKET, SO_ERROR, &error, &size);
  return error;
}

}  // namespace

std::string HostPort::ToString() const {
  const bool six = absl::StrContains(host, ':');
  return absl::StrCat(six ? "[" : "", host, six ? "]:" : ":", port);
}

absl::StatusOr<HostPort> ParseHostPort(const std::string& text) {
  HostPort parsed;
  const size_t colon = text.rfind(':');
  if (colon != std::string::npos && colon > 0 &&
      absl::SimpleAtoi(text.substr(colon + 1), &parsed.port) && parsed.port >= 1 &&
      parsed.port <= 65535) {
    parsed.host =
        std::string(absl::StripSuffix(absl::StripPrefix(text.substr(0, colon), "["), "]"));
    const bool bare_six = absl::StrContains(parsed.host, ':') && text[0] != '[';
    if (!parsed.host.empty() && !bare_six) return parsed;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("\"", text,
                   "\": expected HOST:PORT with a port from 1 to 65535, and an address "
                   "of IPv6 in brackets"));
}

absl::Status TryToReach(const HostPort& address) {
  addrinfo hints = {};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int failed =
      getaddrinfo(address.host.c_str(), absl::StrCat(address.port).c_str(), &hints, &found);
  if (failed != 0) {
    return absl::UnavailableError(
        absl::StrCat("the name ", address.host, " is not resolved: ", gai_strerror(failed)));
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> addresses(found, freeaddrinfo);
  int error = 0;
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    error = Connect(*each);
    if (error == 0) return absl::OkStatus();
  }
  return absl::UnavailableError(absl::StrCat(address.ToString(), ": ", std::strerror(error)));
}

absl::StatusOr<int> FreePort() {
  const UniqueFd descriptor(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  if (!descriptor.valid() || bind(descriptor.get(), any, size) != 0 ||
      getsockname(descriptor.get(), any, &size) != 0) {
    return absl::InternalError(
        absl::StrCat("no free port on the loopback: ", std::strerror(errno)));
  }
  return ntohs(address.sin_port);
}

}  // namespace optshard
