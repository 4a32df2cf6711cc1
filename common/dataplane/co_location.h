// Whether the ranks of a job run on one host, so that they can share memory.
#ifndef OPTSHARD_COMMON_DATAPLANE_CO_LOCATION_H_
#define OPTSHARD_COMMON_DATAPLANE_CO_LOCATION_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/dataplane/rendezvous.h"
#include "common/ids.h"

namespace optshard {

// The same for two processes if and only if they can pass descriptors to each other and watch each
// other's lives: one kernel, one network namespace (abstract socket names), one namespace of
// processes (pidfds), one user.
std::string SharingIdentity();

// Tells all ranks this one's identity ("" is nobody's: it cannot share) and hears theirs: whether
// all are the same. Every rank gets the same answer. PeersTimedOut naming the first rank that did
// not say; or what the rendezvous returns.
absl::StatusOr<bool> AllShareOneHost(Rendezvous& rendezvous, Rank rank, int world_size,
                                     const std::string& identity, absl::Time deadline);

}  // namespace optshard

#endif  // OPTSHARD_COMMON_DATAPLANE_CO_LOCATION_H_
