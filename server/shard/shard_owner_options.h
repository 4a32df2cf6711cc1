// Checks and values that depend on a shard owner's options alone.
#ifndef OPTSHARD_SERVER_SHARD_SHARD_OWNER_OPTIONS_H_
#define OPTSHARD_SERVER_SHARD_SHARD_OWNER_OPTIONS_H_

#include "absl/status/status.h"
#include "common/ids.h"
#include "common/membership/membership.h"
#include "common/optimizer_spec.h"
#include "common/plan.h"
#include "server/shard/shard_owner.h"

namespace optshard {

// INVALID_ARGUMENT naming the first option that is out of its range or missing.
absl::Status CheckOwnerOptions(const ShardOwner::Options& options);

// INTERNAL where the coordinator's plan does not divide the spec's parameters among its ranks.
absl::Status CheckPlan(const Plan& plan, const OptimizerSpec& spec);

// Identifies one join attempt of this process: every call has a new request id. Retries of the
// attempt are the client's and keep the id.
JoinRequest MakeJoinRequest(const ShardOwner::Options& options);

// The rank's share of the CPUs that this process may use, among the ranks of its node.
int ThreadsOf(const ReductionTree& tree, Rank rank);

}  // namespace optshard

#endif  // OPTSHARD_SERVER_SHARD_SHARD_OWNER_OPTIONS_H_
