// A call of all ranks that begins again while a rank's trainer or owner is away.
#ifndef OPTSHARD_CLIENT_OWNER_CALL_ATTEMPTS_H_
#define OPTSHARD_CLIENT_OWNER_CALL_ATTEMPTS_H_

#include <functional>

#include "absl/status/status.h"
#include "client/owner/rank_exchange.h"

namespace optshard {

// Makes attempts at the call, each with exchanges of its own, and returns what the last one does.
// There is another one after errors::IsTrainerGone and errors::IsOwnerAway; after ABORTED, which
// all ranks get where some have begun again; and after errors::IsTornStep, where the owner goes on
// and the attempt had begun, or the call replaces torn state: ranks that do not know yet that it is
// torn still step, and make the call once they are told. No other one
//   - where none has begun for options.timeout, since the call or since the last one that had;
//   - after eight that had begun. An attempt has begun once its first exchange is made, or ABORTED
//     by all ranks together.
// An attempt leaves everything as it was, or so that only another one can go on from it. The first
// exchange of a later one waits as long as any of the one before would have: other ranks may be
// reading, and learn only then that it begins again. Bound to the trainer's thread.
absl::Status CallInAttempts(const RankExchange::Options& options,
                            const std::function<absl::Status(RankExchange&)>& attempt);

}  // namespace optshard

#endif  // OPTSHARD_CLIENT_OWNER_CALL_ATTEMPTS_H_
