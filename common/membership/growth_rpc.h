// Converts what members and coordinator say of param groups that are added to the messages of
// proto/optshard/v1/coordinator.proto and back. FromProto checks what the types do not rule out.
#ifndef OPTSHARD_COMMON_MEMBERSHIP_GROWTH_RPC_H_
#define OPTSHARD_COMMON_MEMBERSHIP_GROWTH_RPC_H_

#include "absl/status/statusor.h"
#include "common/membership/growth.h"
#include "proto/optshard/v1/coordinator.pb.h"

namespace optshard {

// Without header and wait.
v1::ProposeGrowthRequest ToProto(const GrowthProposal& proposal);
// INVALID_ARGUMENT for an unknown phase, a number of 0, numbers that no job has, or a spec as
// FromProto. The spec is not validated.
absl::StatusOr<GrowthProposal> FromProto(const v1::ProposeGrowthRequest& proto);
v1::ProposeGrowthResponse ToProto(const GrowthAnswer& answer);
// INVALID_ARGUMENT for an unknown verdict, a refusal without a reason, or a generation that no job
// has.
absl::StatusOr<GrowthAnswer> FromProto(const v1::ProposeGrowthResponse& proto);

}  // namespace optshard

#endif  // OPTSHARD_COMMON_MEMBERSHIP_GROWTH_RPC_H_
