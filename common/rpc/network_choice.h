// Which of this host's addresses others use.
#ifndef OPTSHARD_COMMON_RPC_NETWORK_CHOICE_H_
#define OPTSHARD_COMMON_RPC_NETWORK_CHOICE_H_

#include <string>

#include "absl/status/statusor.h"

namespace optshard {

// The numeric address from which `peer`, a HOST:PORT, is reached: the loopback's for a peer on it.
// Sends nothing. UNAVAILABLE naming the peer where its name cannot be resolved or no route leads
// there; INVALID_ARGUMENT where it is no HOST:PORT.
absl::StatusOr<std::string> AddressTowards(const std::string& peer);

// The address by which others reach a server that listens at `listen`, a HOST:PORT, with this port:
// its host, or, where it listens everywhere, `own_address` of this host.
std::string ReachableAddress(const std::string& listen, int port, const std::string& own_address);

}  // namespace optshard

#endif  // OPTSHARD_COMMON_RPC_NETWORK_CHOICE_H_
