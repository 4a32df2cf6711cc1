// A step that is tried again while other ranks' trainers or owners are away.
#ifndef OPTSHARD_CLIENT_OWNER_WAIT_FOR_TRAINERS_H_
#define OPTSHARD_CLIENT_OWNER_WAIT_FOR_TRAINERS_H_

#include <functional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/owner/owner_link.h"
#include "common/step_info.h"
#include "server/shard/engine/step_input.h"

namespace optshard {

// As owner.Step(input), but tried again after errors::IsTrainerGone and errors::IsOwnerAway, for
// the input's timeout. Of a step that was given up because somebody is away, the same call made
// again makes one step.
absl::StatusOr<StepInfo> StepWithAllTrainers(OwnerLink& owner, const StepInput& input);

// Likewise of a call that all ranks begin anew after these errors. It begins until `timeout` is
// over, so that one with that time-out of its own may take twice as long.
absl::Status CallWithAllTrainers(absl::Duration timeout, const std::function<absl::Status()>& call);

// Of a call whose end the owner that takes over may know: tried again after errors::IsOwnerAway
// only.
absl::Status CallOnceOwnersAreBack(absl::Duration timeout,
                                   const std::function<absl::Status()>& call);

}  // namespace optshard

#endif  // OPTSHARD_CLIENT_OWNER_WAIT_FOR_TRAINERS_H_
