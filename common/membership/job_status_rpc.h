// Converts what the coordinator says of a job, for people and tools, to the messages of
// proto/optshard/v1/coordinator.proto and back. FromProto checks what the types do not rule out.
#ifndef OPTSHARD_COMMON_MEMBERSHIP_JOB_STATUS_RPC_H_
#define OPTSHARD_COMMON_MEMBERSHIP_JOB_STATUS_RPC_H_

#include "absl/status/statusor.h"
#include "common/membership/membership.h"
#include "proto/optshard/v1/coordinator.pb.h"

namespace optshard {

// These messages also carry a summary for people.
v1::MemberStatus ToProto(const MemberStatus& member);
absl::StatusOr<MemberStatus> FromProto(const v1::MemberStatus& proto);
v1::GroupStatus ToProto(const GroupStatus& group);
absl::StatusOr<GroupStatus> FromProto(const v1::GroupStatus& proto);
v1::JobStatus ToProto(const JobStatus& status);
absl::StatusOr<JobStatus> FromProto(const v1::JobStatus& proto);

}  // namespace optshard

#endif  // OPTSHARD_COMMON_MEMBERSHIP_JOB_STATUS_RPC_H_
