// Checks of an operation's arguments that all planes share.
#ifndef OPTSHARD_COMMON_DATAPLANE_OPERATION_CHECKS_H_
#define OPTSHARD_COMMON_DATAPLANE_OPERATION_CHECKS_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/dataplane/reduction.h"
#include "common/ids.h"

namespace optshard {

// Pure functions, thread-safe. Errors are INVALID_ARGUMENT, with the value that was given and what
// is allowed. `ranks` are those of the plane.

// Every member is one of the ranks, once, and the owner is a member.
absl::Status CheckPublish(Rank owner, absl::Span<const Rank> members, absl::Span<const Rank> ranks);

// Likewise; the groups have all members, and the divisor is at least 1.
absl::Status CheckReduce(const Reduction& reduction, absl::Span<const Rank> ranks,
                         int64_t elements);

absl::Status CheckAllGather(size_t bytes_per_rank);

}  // namespace optshard

#endif  // OPTSHARD_COMMON_DATAPLANE_OPERATION_CHECKS_H_
