// Checks of a join request against the job and against the first member. The functions are pure and
// thread-safe.
#ifndef OPTSHARD_SERVER_COORDINATOR_ADMISSION_H_
#define OPTSHARD_SERVER_COORDINATOR_ADMISSION_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/membership/membership.h"
#include "server/coordinator/member.h"

namespace optshard {

// Checks what concerns the caller alone, and its spec where the request has it. The group goes on
// waiting for a process that may join.
//   INVALID_ARGUMENT     another job or world size, a rank out of range, an empty name, a parameter
//                        space that does not validate
//   FAILED_PRECONDITION  another protocol version
absl::Status CheckJoinRequest(const JoinRequest& request, absl::string_view job, int world_size);

// What all ranks must agree on: rule, gradient mode, policy, buckets, parameters. RanksDisagree
// naming both ranks and showing both sides of the first difference.
absl::Status CheckAgreement(const JoinRequest& first, const JoinRequest& other);

// FAILED_PRECONDITION where the group has failed or finished: nobody can join it any more.
absl::Status CheckOpen(const JoinRequest& request, GroupState state, const absl::Status& failure);

// ALREADY_EXISTS showing who has the rank that the request is for.
absl::Status AlreadyTaken(const JoinRequest& request, const Member& holder, absl::Time now);

}  // namespace optshard

#endif  // OPTSHARD_SERVER_COORDINATOR_ADMISSION_H_
