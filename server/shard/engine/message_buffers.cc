#include "server/shard/engine/message_buffers.h"

#include <algorithm>

namespace optshard {

int64_t StagingBytes(absl::Span<const Bucket> buckets, TravelsAs travels_as) {
  int64_t bytes = 0;
  for (const Bucket& bucket : buckets) {
    const auto each = static_cast<int64_t>(SizeOf(travels_as(bucket.gradient_dtype)));
    bytes = std::max({bytes, bucket.bytes(), bucket.elements * each});
  }
  return bytes;
}

}  // namespace optshard
