#include "server/shard/engine/workspaces.h"

#include <algorithm>

#include "common/dtype.h"
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

int64_t WholeBytesFor(const std::vector<Bucket>& buckets, Rank rank, const ParameterSpace& space,
                      absl::Span<const GroupUpdate> groups, int threads) {
  constexpr int64_t kMost = int64_t{256} << 20;
  int64_t largest = 0;
  int64_t all = 0;
  for (const Bucket& bucket : buckets) {
    if (bucket.owner != rank || groups[bucket.group].rule->spec().element_wise) continue;
    const auto widest = static_cast<int64_t>(
        std::max(SizeOf(bucket.dtype), SizeOf(ArithmeticOf(bucket.gradient_dtype))));
    for (const BucketSpan& span : bucket.spans) {
      const int64_t elements = space.parameter(span.parameter).elements();
      largest = std::max(largest, SaturatingMultiply(elements, widest));
      all = SaturatingAdd(all, SaturatingMultiply(span.elements, widest));
    }
  }
  return std::max(largest, std::min({all, SaturatingMultiply(largest, int64_t{threads}), kMost}));
}

}  // namespace optshard
