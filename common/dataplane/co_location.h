// What the ranks of a job tell each other before they choose a data plane: whether they can share
// memory, and what they offer.
#ifndef OPTSHARD_COMMON_DATAPLANE_CO_LOCATION_H_
#define OPTSHARD_COMMON_DATAPLANE_CO_LOCATION_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/dataplane/rendezvous.h"
#include "common/ids.h"

namespace optshard {

// Two processes have the same identity if and only if they can pass descriptors to each other and
// watch each other's lives. That takes one kernel, one network namespace (abstract socket names),
// one process namespace (pidfds) and one user. Empty where it cannot be found out.
std::string SharingIdentity();

// Whether two processes of these identities run on one kernel. Then it is their namespaces or users
// that keep them from sharing memory. False where either is empty.
bool OnOneKernel(absl::string_view identity, absl::string_view other);

struct RankOffer {
  std::string identity;        // SharingIdentity(); a rank without one shares memory with nobody
  bool asks_for_gloo = false;  // then no rank uses shared memory
  bool has_replica = false;    // the other ranks may reach its parameters and gradients directly
};

// Tells all ranks this rank's offer and collects theirs, by rank: every rank gets the same list.
// Errors: PeersTimedOut, naming the first rank that made no offer; INTERNAL for an offer that this
// version does not understand; and what the rendezvous returns.
absl::StatusOr<std::vector<RankOffer>> ExchangeOffers(Rendezvous& rendezvous, Rank rank,
                                                      int world_size, const RankOffer& own,
                                                      absl::Time deadline);

}  // namespace optshard

#endif  // OPTSHARD_COMMON_DATAPLANE_CO_LOCATION_H_
