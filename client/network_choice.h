// Which of this host's addresses the data plane uses.
#ifndef OPTSHARD_CLIENT_NETWORK_CHOICE_H_
#define OPTSHARD_CLIENT_NETWORK_CHOICE_H_

#include <string>

#include "absl/status/statusor.h"

namespace optshard {

// The numeric address from which `peer`, a HOST:PORT, is reached: the loopback's for a peer on it.
// Sends nothing. UNAVAILABLE naming the peer where its name cannot be resolved or no route leads
// there; INVALID_ARGUMENT where it is no HOST:PORT.
absl::StatusOr<std::string> AddressTowards(const std::string& peer);

}  // namespace optshard

#endif  // OPTSHARD_CLIENT_NETWORK_CHOICE_H_
