// Whether the ranks of a job run on one host, so that they can share memory.
#ifndef OPTSHARD_COMMON_DATAPLANE_CO_LOCATION_H_
#define OPTSHARD_COMMON_DATAPLANE_CO_LOCATION_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/dataplane/rendezvous.h"
#include "common/ids.h"

namespace optshard {

// Identifies what processes need to have in common to share memory: the kernel, the network
// namespace (for abstract socket names), the process namespace (for pidfds) and the user. Two
// processes with the same identity can pass descriptors to each other and notice each other's end.
std::string SharingIdentity();

// Exchanges identities with all ranks, and returns whether all are the same. "" is the identity of
// a rank that cannot share. Every rank gets the same answer. PeersTimedOut naming the first rank
// that did not give its identity, or the error of the rendezvous.
absl::StatusOr<bool> AllShareOneHost(Rendezvous& rendezvous, Rank rank, int world_size,
                                     const std::string& identity, absl::Time deadline);

}  // namespace optshard

#endif  // OPTSHARD_COMMON_DATAPLANE_CO_LOCATION_H_
