#include "common/streaming_copy.h"

#include <emmintrin.h>

#include <cstdint>
#include <cstring>

#include "common/cache_line.h"

namespace optshard {
namespace {

// Less is read again before the cache is full, most likely.
constexpr size_t kLeastBytes = size_t{256} << 10;

}  // namespace

bool IsStreamable(const void* to) { return reinterpret_cast<uintptr_t>(to) % kCacheLineBytes == 0; }

void Stream(void* to, const void* from, size_t bytes) {
  char* out = static_cast<char*>(to);
  const char* in = static_cast<const char*>(from);
  const size_t lines = bytes / kCacheLineBytes;
  for (size_t line = 0; line < lines; ++line, in += kCacheLineBytes, out += kCacheLineBytes) {
    __m128i values[kCacheLineBytes / sizeof(__m128i)];
    std::memcpy(values, in, kCacheLineBytes);
    for (size_t i = 0; i < kCacheLineBytes / sizeof(__m128i); ++i) {
      _mm_stream_si128(reinterpret_cast<__m128i*>(out) + i, values[i]);
    }
  }
  std::memcpy(out, in, bytes % kCacheLineBytes);
}

void FenceStreams() { _mm_sfence(); }

void StreamingCopy(void* to, const void* from, size_t bytes) {
  if (bytes == 0) return;  // then either may be null
  if (bytes < kLeastBytes || reinterpret_cast<uintptr_t>(to) % sizeof(__m128i) != 0) {
    std::memcpy(to, from, bytes);
    return;
  }
  Stream(to, from, bytes);
  FenceStreams();
}

}  // namespace optshard
