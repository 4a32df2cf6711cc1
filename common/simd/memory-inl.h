// How code that streams through arrays speaks to the memory. Compiled once for every instruction
// set.
#if defined(OPTSHARD_COMMON_SIMD_MEMORY_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OPTSHARD_COMMON_SIMD_MEMORY_INL_H_
#undef OPTSHARD_COMMON_SIMD_MEMORY_INL_H_
#else
#define OPTSHARD_COMMON_SIMD_MEMORY_INL_H_
#endif

#include <cstdint>

#include "hwy/cache_control.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace optshard {
namespace HWY_NAMESPACE {

// Hardware fetches ahead, but not beyond the end of a 4 KiB page. So the loops ask once a cache
// line for what comes a little later. From 768 bytes on this disturbs what the hardware fetches by
// itself, and is worse than asking for nothing (docs/measurements/fetch_ahead.md). Not for copies:
// what they hold is not read.
constexpr uintptr_t kBytesAhead = 384;
constexpr uintptr_t kLineBytes = 64;
template <class E>
constexpr int64_t kLineElements = kLineBytes / sizeof(typename E::Number);

// Whether element i of an aligned span begins a cache line, for vectors. One element at a time
// waits for arithmetic, not for memory.
template <class E>
HWY_INLINE bool BeginsLine(int64_t i) {
  return E::kIsVector && (E::Width() >= kLineElements<E> || i % kLineElements<E> == 0);
}

// May reach behind the array: it is only a hint, nothing is read there.
HWY_INLINE void FetchAhead(const void* at) {
  hwy::Prefetch(reinterpret_cast<const char*>(reinterpret_cast<uintptr_t>(at) + kBytesAhead));
}

}  // namespace HWY_NAMESPACE
}  // namespace optshard
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
