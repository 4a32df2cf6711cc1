// A copy of memory that is not read again soon: past the caches.
#ifndef OPTSHARD_COMMON_STREAMING_COPY_H_
#define OPTSHARD_COMMON_STREAMING_COPY_H_

#include <cstddef>

namespace optshard {

// As memcpy; of no bytes either may be null. Where it is large and `to` is 16-byte aligned, what it
// overwrites is not read from memory first, and does not push anything else out of the caches.
// Other threads may read it as after ordinary stores.
void StreamingCopy(void* to, const void* from, size_t bytes);

// For one large copy in many pieces: as StreamingCopy whatever the size; `to` must be 16-byte
// aligned. Other threads may read it once FenceStreams has returned.
void Stream(void* to, const void* from, size_t bytes);
void FenceStreams();
bool IsStreamable(const void* to);  // begins a cache line: whole ones are written at once

}  // namespace optshard

#endif  // OPTSHARD_COMMON_STREAMING_COPY_H_
