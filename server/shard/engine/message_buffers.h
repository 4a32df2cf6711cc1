// The memory through which buckets travel as messages, beside where they lie.
#ifndef OPTSHARD_SERVER_SHARD_ENGINE_MESSAGE_BUFFERS_H_
#define OPTSHARD_SERVER_SHARD_ENGINE_MESSAGE_BUFFERS_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/bucket.h"
#include "common/dtype.h"

namespace optshard {

// As what type the elements of a gradient travel.
using TravelsAs = DType (*)(DType gradient);

// A staging buffer: any bucket fits, its gradient as it travels or its parameters. Thread-safe.
int64_t StagingBytes(absl::Span<const Bucket> buckets, TravelsAs travels_as);

}  // namespace optshard

#endif  // OPTSHARD_SERVER_SHARD_ENGINE_MESSAGE_BUFFERS_H_
