// HOST:PORT, the host a name or an address, one of IPv6 in brackets.
#ifndef OPTSHARD_TOOLS_LAUNCHER_HOST_PORT_H_
#define OPTSHARD_TOOLS_LAUNCHER_HOST_PORT_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace optshard {

struct HostPort {
  std::string host;  // without brackets
  int port = 0;      // 1 to 65535

  std::string ToString() const;
};

// INVALID_ARGUMENT showing the text.
absl::StatusOr<HostPort> ParseHostPort(const std::string& text);

// Whether something listens there now: connects, and closes again. Waits 200 ms at most, and for
// the resolution of the name. UNAVAILABLE saying why not.
absl::Status TryToReach(const HostPort& address);

// A TCP port of the loopback that was free a moment ago. INTERNAL where there is none.
absl::StatusOr<int> FreePort();

}  // namespace optshard

#endif  // OPTSHARD_TOOLS_LAUNCHER_HOST_PORT_H_
