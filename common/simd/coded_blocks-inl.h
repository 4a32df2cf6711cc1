// What the loops over blocks of codes have in common. Compiled once for every instruction set.
#if defined(OPTSHARD_COMMON_SIMD_CODED_BLOCKS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OPTSHARD_COMMON_SIMD_CODED_BLOCKS_INL_H_
#undef OPTSHARD_COMMON_SIMD_CODED_BLOCKS_INL_H_
#else
#define OPTSHARD_COMMON_SIMD_CODED_BLOCKS_INL_H_
#endif

#include <cstdint>

#include "common/block_code.h"
#include "common/lines_ahead.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace optshard {
namespace HWY_NAMESPACE {
namespace coded_blocks {

namespace hn = hwy::HWY_NAMESPACE;

using Floats = hn::ScalableTag<float>;
using Words = hn::RebindToSigned<Floats>;
constexpr int32_t kInfinityBits = 0x7f800000;

// In each lane the bits of its largest absolute value: those of a NaN are above all others. As
// integers, since the instruction sets differ in what the larger of a number and a NaN is.
HWY_INLINE hn::Vec<Words> LargestOfLanes(const float* values, int64_t elements) {
  const auto magnitude = hn::Set(Words(), 0x7fffffff);
  auto largest = hn::Zero(Words());
  for (int64_t i = 0; i < elements; i += static_cast<int64_t>(hn::Lanes(Floats()))) {
    const auto bits = hn::BitCast(Words(), hn::LoadU(Floats(), values + i));
    largest = hn::Max(largest, hn::And(bits, magnitude));
  }
  return largest;
}

// Those of all lanes.
HWY_INLINE int32_t LargestBits(const float* values, int64_t elements) {
  return hn::GetLane(hn::MaxOfLanes(Words(), LargestOfLanes(values, elements)));
}

// Loops call this for each `element` where a vector or a block begins; every kElementsAFetch
// elements it fetches some lines.
HWY_INLINE void FetchMeanwhile(int64_t element, LinesAhead* meanwhile) {
  if (element % kElementsAFetch == 0 && meanwhile != nullptr) meanwhile->FetchSome();
}

}  // namespace coded_blocks
}  // namespace HWY_NAMESPACE
}  // namespace optshard
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
