// The memory in which rules compute that need whole parameters (SpanUpdate::workspace).
#ifndef OPTSHARD_SERVER_SHARD_ENGINE_WORKSPACES_H_
#define OPTSHARD_SERVER_SHARD_ENGINE_WORKSPACES_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/bucket.h"
#include "common/checked_math.h"
#include "common/ids.h"
#include "common/parameter_space.h"
#include "server/update/group_update.h"

namespace optshard {

struct Workspaces {
  int64_t count = 0;       // one for each parameter that is updated at the same time
  int64_t bytes_each = 0;  // a multiple of kAlignmentBytes

  int64_t bytes() const { return SaturatingMultiply(count, bytes_each); }
};

// Those of a rank that updates its buckets with so many threads. Thread-safe.
Workspaces WorkspacesFor(const std::vector<Bucket>& buckets, Rank rank, const ParameterSpace& space,
                         absl::Span<const GroupUpdate> groups, int threads);

// Where parameters lie on a device and their updates are made on the host: what passes to the host
// at once of parameters that must as a whole (OffloadExecutor::Options::whole_bytes). So much that
// every thread has one, as long as it is not more than 256 MiB; 0: there are none. Thread-safe.
int64_t WholeBytesFor(const std::vector<Bucket>& buckets, Rank rank, const ParameterSpace& space,
                      absl::Span<const GroupUpdate> groups, int threads);

}  // namespace optshard

#endif  // OPTSHARD_SERVER_SHARD_ENGINE_WORKSPACES_H_
