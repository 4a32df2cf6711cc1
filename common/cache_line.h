// Cache lines: what is shared between processes begins at one, so that writers do not slow down
// those who read what lies beside it.
#ifndef OPTSHARD_COMMON_CACHE_LINE_H_
#define OPTSHARD_COMMON_CACHE_LINE_H_

#include <cstddef>

namespace optshard {

constexpr size_t kCacheLineBytes = 64;

// The bytes of the lines that so many bytes take, which may be at most kCacheLineBytes - 1 less
// than SIZE_MAX.
constexpr size_t WholeLines(size_t bytes) {
  return (bytes + kCacheLineBytes - 1) / kCacheLineBytes * kCacheLineBytes;
}

}  // namespace optshard

#endif  // OPTSHARD_COMMON_CACHE_LINE_H_
