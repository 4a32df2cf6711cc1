// Which addresses of this host other processes are told.
#ifndef OPTSHARD_COMMON_RPC_NETWORK_CHOICE_H_
#define OPTSHARD_COMMON_RPC_NETWORK_CHOICE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace optshard {

// The numeric address from which this host reaches `peer`, a HOST:PORT. It is the loopback's for a
// peer on this host. Sends nothing. UNAVAILABLE naming the peer where its name cannot be resolved
// or no route leads there; INVALID_ARGUMENT where `peer` is not a HOST:PORT.
absl::StatusOr<std::string> AddressTowards(const std::string& peer);

// The numeric addresses under which other hosts may reach this one, the likeliest first: that of
// the default route, then those of the interfaces that are up. Empty on a host that has no network.
std::vector<std::string> HostAddresses();

// Where a server listens whose user has not said it: any free port of `towards_peers`, an address
// of this host that peers are reached from. So where the peer that was looked at is on this host,
// only processes of this host reach it.
std::string ListenTowards(const std::string& towards_peers);

// The HOST:PORT under which others reach a server that listens at `listen` and got `port`. A server
// that listens on one address is reached there. One that listens on all (0.0.0.0, [::]) is reached
// at `towards_peers`, an address of this host that peers are reached from. Where that is the
// loopback, since the peer that was looked at is on this host, other hosts could not use it: the
// first of `host_addresses` takes its place.
std::string ReachableAddress(const std::string& listen, int port, const std::string& towards_peers,
                             absl::Span<const std::string> host_addresses);

}  // namespace optshard

#endif  // OPTSHARD_COMMON_RPC_NETWORK_CHOICE_H_
