// Who may join: pure checks of a join request, against the job and against the first member.
#ifndef OPTSHARD_SERVER_COORDINATOR_ADMISSION_H_
#define OPTSHARD_SERVER_COORDINATOR_ADMISSION_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/membership/membership.h"

namespace optshard {

// What concerns the caller alone; the group goes on waiting for the right one.
//   INVALID_ARGUMENT     another job or world size, a rank out of range, an empty name, a parameter
//                        space that does not validate
//   FAILED_PRECONDITION  another protocol version
absl::Status CheckJoinRequest(const JoinRequest& request, absl::string_view job, int world_size);

// What all ranks must agree on: rule, gradient mode, policy, buckets, parameters. RanksDisagree
// naming both ranks and showing both sides of the first difference.
absl::Status CheckAgreement(const JoinRequest& first, const JoinRequest& other);

}  // namespace optshard

#endif  // OPTSHARD_SERVER_COORDINATOR_ADMISSION_H_
