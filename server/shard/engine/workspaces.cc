#include "server/shard/engine/workspaces.h"

#include <algorithm>

#include "common/memory_layout.h"

namespace optshard {

Workspaces WorkspacesFor(const std::vector<Bucket>& buckets, Rank rank, const ParameterSpace& space,
                         absl::Span<const GroupUpdate> groups, int threads) {
  Workspaces result;
  for (const Bucket& bucket : buckets) {
    if (bucket.owner != rank) continue;
    for (const BucketSpan& span : bucket.spans) {
      if (span.parameter_offset_elements != 0) continue;
      const ParameterSpec& parameter = space.parameter(span.parameter);
      const int64_t bytes =
          groups[bucket.group].rule->WorkspaceBytes(parameter.shape, parameter.dtype);
      if (bytes == 0) continue;
      result.count = std::min<int64_t>(result.count + 1, std::max(threads, 1));
      result.bytes_each = std::max(result.bytes_each, bytes);
    }
  }
  result.bytes_each = (result.bytes_each + kAlignmentBytes - 1) / kAlignmentBytes * kAlignmentBytes;
  return result;
}

}  // namespace optshard
