#include <cstring>

#include "common/coded_blocks.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "common/companded_blocks.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "common/simd/coded_blocks-inl.h"
#include "common/simd/companded_code-inl.h"
#include "common/simd/half-inl.h"
#include "common/simd/lanes-inl.h"
#include "common/simd/memory-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace optshard {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

using coded_blocks::FetchMeanwhile;
using coded_blocks::Floats;
using coded_blocks::kInfinityBits;
using coded_blocks::LargestBits;
using coded_blocks::LargestOfLanes;
using coded_blocks::Words;
constexpr int64_t kCompandedBlock = 32;

// The vector of its first four lanes.
template <class Vector>
HWY_INLINE auto FirstFour(Vector vector) {
  if constexpr (hn::MaxLanes(hn::DFromV<Vector>()) > 4) {
    return FirstFour(hn::LowerHalf(vector));
  } else {
    return vector;
  }
}

// LargestBits of four blocks that follow each other: one reduction serves all four.
HWY_INLINE void LargestBitsOfFour(const float* values, int32_t* largest) {
#if HWY_TARGET == HWY_SCALAR
  for (int b = 0; b < 4; ++b) {
    largest[b] = LargestBits(values + b * kCompandedBlock, kCompandedBlock);
  }
#else
  const auto of_lanes = [values](int block) {
    return LargestOfLanes(values + block * kCompandedBlock, kCompandedBlock);
  };
  // Of each 128 bits, half as many lanes for each of twice as many blocks.
  const auto fold = [](auto a, auto b) {
    return hn::Max(hn::InterleaveLower(Words(), a, b), hn::InterleaveUpper(Words(), a, b));
  };
  auto most = fold(fold(of_lanes(0), of_lanes(2)), fold(of_lanes(1), of_lanes(3)));
  if (Lanes::Width() > 4) most = hn::Max(most, hn::ReverseBlocks(Words(), most));
  if (Lanes::Width() > 8) most = hn::Max(most, hn::SwapAdjacentBlocks(most));
  const auto four = FirstFour(most);
  hn::StoreU(four, hn::DFromV<decltype(four)>(), largest);
#endif
}

// Scales are computed for so many blocks at once: a multiple of every vector's lanes.
constexpr int64_t kBlocksAtOnce = 32;
// A value's largest bits from which no code is estimated: those of 2^60.
constexpr int32_t kTooLargeBits = 0x5d800000;

// The largest values of up to kBlocksAtOnce blocks, and 0 of those that are not there.
void LargestOfBlocks(const float* values, int64_t blocks, int32_t* largest) {
  int64_t b = 0;
  for (; b + 4 <= blocks; b += 4) LargestBitsOfFour(values + b * kCompandedBlock, largest + b);
  for (; b < blocks; ++b) {
    largest[b] = LargestBits(values + b * kCompandedBlock, kCompandedBlock);
  }
  for (; b < kBlocksAtOnce; ++b) largest[b] = 0;
}

// Of kBlocksAtOnce blocks, by their largest values: the float16 scales, and what Encode and About
// take in place of those.
template <class Companded>
HWY_INLINE void ScalesOfBlocks(const int32_t* largest, uint16_t* scales, float* divisors) {
  for (int64_t b = 0; b < kBlocksAtOnce; b += Lanes::Width()) {
    const auto bits = hn::Load(Words(), largest + b);
    const auto value = hn::BitCast(Floats(), bits);
    const auto limited = hn::Min(hn::Max(Companded::ScaleOf(value), hn::Set(Floats(), 0x1p-24f)),
                                 hn::Set(Floats(), 65504.0f));
    const auto not_finite =
        hn::RebindMask(Floats(), hn::Gt(bits, hn::Set(Words(), kInfinityBits - 1)));
    const auto is_zero = hn::RebindMask(Floats(), hn::Eq(bits, hn::Zero(Words())));
    const auto nan = hn::BitCast(Floats(), hn::Set(Words(), 0x7fc00000));
    const auto scale = hn::IfThenElse(not_finite, nan, hn::IfThenZeroElse(is_zero, limited));
    StoreHalf<Float16>(Lanes(scale), scales + b);
    Lanes kept;
    LoadHalf<Float16>(scales + b, kept);
    hn::Store(Companded::Divisor(kept.raw), Floats(), divisors + b);
  }
}

template <class Companded>
HWY_NOINLINE void EncodeExactly(const float* block, int32_t largest, float divisor,
                                uint8_t* codes) {
  if (largest == 0 || largest >= kInfinityBits) {
    std::memset(codes, 0, kCompandedBlock);
    return;
  }
  for (int64_t i = 0; i < kCompandedBlock; i += Lanes::Width()) {
    Companded::Encode(hn::LoadU(Floats(), block + i), hn::Set(Floats(), divisor), codes + i);
  }
}

// So many blocks are encoded together by estimates.
constexpr int64_t kVectorsTogether = CodesOfPlaces::kVectors;
constexpr int64_t kBlocksTogether = hn::MaxLanes(Floats()) * kVectorsTogether > kCompandedBlock
                                        ? hn::MaxLanes(Floats()) * kVectorsTogether
                                              / kCompandedBlock
                                        : 1;

// Of kBlocksTogether blocks. False where there is doubt: then the codes are not to be used.
template <class Companded>
HWY_INLINE bool EncodeByEstimates(const CodesOfPlaces& places, const float* values,
                                  const float* divisors, uint8_t* codes) {
  auto in_doubt = hn::MaskFromVec(hn::Zero(Words()));
  const int64_t step = kVectorsTogether * Lanes::Width();
  for (int64_t i = 0; i < kBlocksTogether * kCompandedBlock; i += step) {
    const auto sum_of = [&](int v) {
      const int64_t at = i + v * Lanes::Width();
      const auto divisor = hn::Set(Floats(), divisors[at / kCompandedBlock]);
      const auto sum =
          hn::BitCast(Words(), Companded::About(hn::LoadU(Floats(), values + at), divisor));
      in_doubt = hn::Or(in_doubt, code_places::IsInDoubt(sum, Companded::kDoubt));
      return sum;
    };
    const auto a = sum_of(0);
    const auto b = sum_of(1);
    const auto c = sum_of(2);
    const auto d = sum_of(3);
    places.Store(a, b, c, d, codes + i);
  }
  return HWY_LIKELY(hn::AllFalse(Words(), in_doubt));
}

// Whether no block has only zeros or a value that is too large.
HWY_INLINE bool CanBeEstimated(const int32_t* largest) {
  for (int64_t b = 0; b < kBlocksTogether; ++b) {
    if (largest[b] == 0 || largest[b] >= kTooLargeBits) return false;
  }
  return true;
}

template <class Companded>
void EncodeCompanded(const float* values, int64_t blocks, uint8_t* codes, void* scales,
                     LinesAhead* meanwhile) {
  const CodesOfPlaces places;
  for (int64_t begin = 0; begin < blocks; begin += kBlocksAtOnce) {
    const int64_t count = blocks - begin < kBlocksAtOnce ? blocks - begin : kBlocksAtOnce;
    alignas(64) int32_t largest[kBlocksAtOnce];
    alignas(64) uint16_t halves[kBlocksAtOnce];
    alignas(64) float divisors[kBlocksAtOnce];
    LargestOfBlocks(values + begin * kCompandedBlock, count, largest);
    ScalesOfBlocks<Companded>(largest, halves, divisors);
    std::memcpy(static_cast<uint16_t*>(scales) + begin, halves, count * sizeof(uint16_t));
    for (int64_t b = 0; b < count;) {
      FetchMeanwhile(b * kCompandedBlock, meanwhile);
      const float* const from = values + (begin + b) * kCompandedBlock;
      uint8_t* const to = codes + (begin + b) * kCompandedBlock;
      const int64_t together = count - b < kBlocksTogether ? count - b : kBlocksTogether;
      if (!(companded_internal::kHasEstimates && together == kBlocksTogether &&
            CanBeEstimated(largest + b) &&
            EncodeByEstimates<Companded>(places, from, divisors + b, to))) {
        for (int64_t k = 0; k < together; ++k) {
          EncodeExactly<Companded>(from + k * kCompandedBlock, largest[b + k], divisors[b + k],
                                   to + k * kCompandedBlock);
        }
      }
      b += together;
    }
  }
}

template <class Companded>
void DecodeCompanded(const uint8_t* codes, const void* scales, int64_t blocks, float* values,
                     LinesAhead* meanwhile) {
  for (int64_t begin = 0; begin < blocks; begin += kBlocksAtOnce) {
    const int64_t count = blocks - begin < kBlocksAtOnce ? blocks - begin : kBlocksAtOnce;
    alignas(64) uint16_t halves[kBlocksAtOnce] = {};
    std::memcpy(halves, static_cast<const uint16_t*>(scales) + begin, count * sizeof(uint16_t));
    alignas(64) float widened[kBlocksAtOnce];
    for (int64_t b = 0; b < kBlocksAtOnce; b += Lanes::Width()) {
      Lanes scale;
      LoadHalf<Float16>(halves + b, scale);
      scale.Store(widened + b);
    }
    for (int64_t b = 0; b < count; ++b) {
      const int64_t first = (begin + b) * kCompandedBlock;
      if (first % kLineBytes == 0) FetchAhead(codes + first);
      FetchMeanwhile(first, meanwhile);
      const auto scale = hn::Set(Floats(), widened[b]);
      for (int64_t i = first; i < first + kCompandedBlock; i += Lanes::Width()) {
        hn::StoreU(Companded::Decode(codes + i, scale), Floats(), values + i);
      }
    }
  }
}

void EncodeBlocks(const float* values, int64_t blocks, const CodedArray& to,
                  LinesAhead* meanwhile) {
  const auto encode = to.code == BlockCode::kCompandedAverage ? EncodeCompanded<CompandedAverage>
                                                              : EncodeCompanded<CompandedSquare>;
  encode(values, blocks, to.codes, to.scales, meanwhile);
}
void DecodeBlocks(const CodedArray& from, int64_t blocks, float* values, LinesAhead* meanwhile) {
  const auto decode = from.code == BlockCode::kCompandedAverage ? DecodeCompanded<CompandedAverage>
                                                                : DecodeCompanded<CompandedSquare>;
  decode(from.codes, from.scales, blocks, values, meanwhile);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace optshard
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace optshard {
namespace {

HWY_EXPORT(EncodeBlocks);
HWY_EXPORT(DecodeBlocks);

}  // namespace

void EncodeCompandedBlocks(const float* values, int64_t blocks, const CodedArray& to,
                           LinesAhead* meanwhile) {
  HWY_DYNAMIC_DISPATCH(EncodeBlocks)(values, blocks, to, meanwhile);
}

void DecodeCompandedBlocks(const CodedArray& from, int64_t blocks, float* values,
                           LinesAhead* meanwhile) {
  HWY_DYNAMIC_DISPATCH(DecodeBlocks)(from, blocks, values, meanwhile);
}

}  // namespace optshard
#endif  // HWY_ONCE
