// A joined member over gRPC.
#ifndef OPTSHARD_COMMON_MEMBERSHIP_MEMBER_SESSION_RPC_H_
#define OPTSHARD_COMMON_MEMBERSHIP_MEMBER_SESSION_RPC_H_

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "common/cancellation.h"
#include "common/ids.h"
#include "common/membership/coordinator_client.h"
#include "common/membership/membership.h"
#include "common/optimizer_spec.h"

namespace optshard {

// A session of a member that the coordinator at `address` has admitted with `reply`. Nobody else
// uses `channel`. The plan is made of `spec`, with which the member has joined. Two threads renew
// the lease and read the events until the session is destroyed. `cancellation` as in
// CoordinatorClient::Join.
std::unique_ptr<MemberSession> StartMemberSession(std::string address,
                                                  std::shared_ptr<grpc::Channel> channel,
                                                  MemberId id, const JoinReply& reply,
                                                  OptimizerSpec spec,
                                                  Cancellation* cancellation = nullptr);

}  // namespace optshard

#endif  // OPTSHARD_COMMON_MEMBERSHIP_MEMBER_SESSION_RPC_H_
