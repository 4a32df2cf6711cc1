// Converts what members and coordinator exchange to the messages of proto/optshard/v1/
// coordinator.proto and back. FromProto checks what the types do not rule out.
#ifndef OPTSHARD_COMMON_MEMBERSHIP_MEMBERSHIP_RPC_H_
#define OPTSHARD_COMMON_MEMBERSHIP_MEMBERSHIP_RPC_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/ids.h"
#include "common/membership/membership.h"
#include "common/optimizer_spec.h"
#include "proto/optshard/v1/coordinator.pb.h"

namespace optshard {

v1::CallHeader MakeHeader(const MemberId& member, Generation generation,
                          absl::string_view request_id);
MemberId MemberOf(const v1::CallHeader& header);

v1::JoinRequest ToProto(const JoinRequest& request);
absl::StatusOr<JoinRequest> FromProto(const v1::JoinRequest& proto);

v1::JoinResponse ToProto(const JoinReply& reply);
// INVALID_ARGUMENT for an unknown answer, or for an admission whose lease or period is of no use.
absl::StatusOr<JoinReply> FromProto(const v1::JoinResponse& proto);

v1::WatchEvent ToProto(const MemberEvent& event);
// Makes the plan of the event and of the member's own spec. FAILED_PRECONDITION where the
// coordinator has made another one; INVALID_ARGUMENT naming what is wrong with the message.
absl::StatusOr<MemberEvent> FromProto(const v1::WatchEvent& proto, const OptimizerSpec& spec);

v1::GetPlanResponse ToProto(const OptimizerPlan& plan);
// Makes the plan, as of an event.
absl::StatusOr<OptimizerPlan> FromProto(const v1::GetPlanResponse& proto);

v1::GetOwnersResponse ToProto(const OwnerPage& page);
// INVALID_ARGUMENT for numbers that no job has, or an address that is none.
absl::StatusOr<OwnerPage> FromProto(const v1::GetOwnersResponse& proto);

}  // namespace optshard

#endif  // OPTSHARD_COMMON_MEMBERSHIP_MEMBERSHIP_RPC_H_
