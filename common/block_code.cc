#include "common/block_code.h"

#include <cstring>

#include "common/dynamic_map.h"
#include "common/half.h"
#include "common/simd/scalar.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "common/block_code.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "common/simd/companded_code-inl.h"
#include "common/simd/dynamic_code-inl.h"
#include "common/simd/half-inl.h"
#include "common/simd/lanes-inl.h"
#include "common/simd/memory-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace optshard {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

using Floats = hn::ScalableTag<float>;
using Words = hn::RebindToSigned<Floats>;
constexpr int64_t kDynamicBlock = 256;
constexpr int64_t kCompandedBlock = 32;
constexpr int32_t kInfinityBits = 0x7f800000;

// The bits of the largest absolute value: those of a NaN are above all others. As integers, since
// the instruction sets differ in what the larger of a number and a NaN is.
HWY_INLINE int32_t LargestBits(const float* values, int64_t elements) {
  const auto magnitude = hn::Set(Words(), 0x7fffffff);
  auto largest = hn::Zero(Words());
  for (int64_t i = 0; i < elements; i += Lanes::Width()) {
    const auto bits = hn::BitCast(Words(), hn::LoadU(Floats(), values + i));
    largest = hn::Max(largest, hn::And(bits, magnitude));
  }
  return hn::GetLane(hn::MaxOfLanes(Words(), largest));
}

template <class Vector>
HWY_INLINE auto FirstFour(Vector vector) {
  if constexpr (hn::MaxLanes(hn::DFromV<Vector>()) > 4) {
    return FirstFour(hn::LowerHalf(vector));
  } else {
    return vector;
  }
}

// Those of four blocks of 32 elements each: their lanes are folded together.
HWY_INLINE void LargestBitsOfFour(const float* values, int32_t* largest) {
#if HWY_TARGET == HWY_SCALAR
  for (int b = 0; b < 4; ++b) {
    largest[b] = LargestBits(values + b * kCompandedBlock, kCompandedBlock);
  }
#else
  const auto of_lanes = [values](int block) {
    const auto magnitude = hn::Set(Words(), 0x7fffffff);
    auto most = hn::Zero(Words());
    for (int64_t i = block * kCompandedBlock; i < (block + 1) * kCompandedBlock;
         i += Lanes::Width()) {
      const auto bits = hn::BitCast(Words(), hn::LoadU(Floats(), values + i));
      most = hn::Max(most, hn::And(bits, magnitude));
    }
    return most;
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

// At the beginning of a loop's part from `element` on.
HWY_INLINE void FetchMeanwhile(int64_t element, LinesAhead* meanwhile) {
  if (element % kElementsAFetch == 0 && meanwhile != nullptr) meanwhile->FetchSome();
}

// Times a power of two, so that the inverse of the scale is a normal number. What it rounds has
// quotients near 0.
void ShiftBlock(const float* values, float shift, float* shifted) {
  for (int64_t i = 0; i < kDynamicBlock; i += Lanes::Width()) {
    hn::StoreU(hn::Mul(hn::LoadU(Floats(), values + i), hn::Set(Floats(), shift)), Floats(),
               shifted + i);
  }
}

template <bool kSigned>
void EncodeDynamicBlock(const float* values, float scale, uint8_t* codes, LinesAhead* meanwhile) {
  const DynamicVectors<kSigned> vectors;
  const auto divisor = hn::Set(Floats(), scale);
  const auto inverse = hn::Set(Floats(), 1 / scale);
  constexpr int kVectors = DynamicVectors<kSigned>::kVectors;
  for (int64_t i = 0; i < kDynamicBlock; i += kVectors * Lanes::Width()) {
    FetchMeanwhile(i, meanwhile);
    vectors.Encode(values + i, divisor, inverse, codes + i);
  }
}

// The functions below do whole blocks.

// The largest values of so many blocks are found before the first one's codes, which else would
// wait for its scale.
constexpr int64_t kDynamicBlocksAtOnce = 4;

template <bool kSigned>
void EncodeDynamic(const float* values, int64_t blocks, uint8_t* codes, void* scales,
                   LinesAhead* meanwhile) {
  alignas(64) float shifted[kDynamicBlock];
  for (int64_t begin = 0; begin < blocks; begin += kDynamicBlocksAtOnce) {
    const int64_t end =
        begin + kDynamicBlocksAtOnce < blocks ? begin + kDynamicBlocksAtOnce : blocks;
    int32_t largest[kDynamicBlocksAtOnce];
    for (int64_t b = begin; b < end; ++b) {
      largest[b - begin] = LargestBits(values + b * kDynamicBlock, kDynamicBlock);
    }
    for (int64_t b = begin; b < end; ++b) {
      const float* const block = values + b * kDynamicBlock;
      uint8_t* const to = codes + b * kDynamicBlock;
      const int32_t bits = largest[b - begin];
      const float scale = bits < kInfinityBits ? FloatOf(bits) : FloatOf(0x7fc00000);
      static_cast<float*>(scales)[b] = scale;
      if (bits == 0 || bits >= kInfinityBits) {
        std::memset(to, kSigned ? 127 : 0, kDynamicBlock);
      } else if (scale < 0x1p-100f || scale > 0x1p100f) {
        const float shift = scale < 1 ? 0x1p64f : 0x1p-64f;
        ShiftBlock(block, shift, shifted);
        EncodeDynamicBlock<kSigned>(shifted, scale * shift, to, meanwhile);
      } else {
        EncodeDynamicBlock<kSigned>(block, scale, to, meanwhile);
      }
    }
  }
}

template <bool kSigned>
void DecodeDynamic(const uint8_t* codes, const void* scales, int64_t blocks, float* values,
                   LinesAhead* meanwhile) {
  const DynamicVectors<kSigned> vectors;
  for (int64_t b = 0; b < blocks; ++b) {
    const auto scale = hn::Set(Floats(), static_cast<const float*>(scales)[b]);
    for (int64_t i = b * kDynamicBlock; i < (b + 1) * kDynamicBlock; i += Lanes::Width()) {
      if (i % kLineBytes == 0) FetchAhead(codes + i);
      FetchMeanwhile(i, meanwhile);
      // A negative value times a scale of 0 is -0, and adding 0 makes that 0.
      const auto value = hn::Add(hn::Mul(vectors.Decode(codes + i), scale), hn::Zero(Floats()));
      hn::StoreU(value, Floats(), values + i);
    }
  }
}

void EncodeDynamicSigned(const float* values, int64_t blocks, uint8_t* codes, void* scales,
                         LinesAhead* meanwhile) {
  EncodeDynamic<true>(values, blocks, codes, scales, meanwhile);
}
void EncodeDynamicUnsigned(const float* values, int64_t blocks, uint8_t* codes, void* scales,
                           LinesAhead* meanwhile) {
  EncodeDynamic<false>(values, blocks, codes, scales, meanwhile);
}
void DecodeDynamicSigned(const uint8_t* codes, const void* scales, int64_t blocks, float* values,
                         LinesAhead* meanwhile) {
  DecodeDynamic<true>(codes, scales, blocks, values, meanwhile);
}
void DecodeDynamicUnsigned(const uint8_t* codes, const void* scales, int64_t blocks, float* values,
                           LinesAhead* meanwhile) {
  DecodeDynamic<false>(codes, scales, blocks, values, meanwhile);
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

// What codes are made with, from the largest values of kBlocksAtOnce blocks; and the scales.
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

void EncodeAverages(const float* values, int64_t blocks, uint8_t* codes, void* scales,
                    LinesAhead* meanwhile) {
  EncodeCompanded<CompandedAverage>(values, blocks, codes, scales, meanwhile);
}
void EncodeSquares(const float* values, int64_t blocks, uint8_t* codes, void* scales,
                   LinesAhead* meanwhile) {
  EncodeCompanded<CompandedSquare>(values, blocks, codes, scales, meanwhile);
}
void DecodeAverages(const uint8_t* codes, const void* scales, int64_t blocks, float* values,
                    LinesAhead* meanwhile) {
  DecodeCompanded<CompandedAverage>(codes, scales, blocks, values, meanwhile);
}
void DecodeSquares(const uint8_t* codes, const void* scales, int64_t blocks, float* values,
                   LinesAhead* meanwhile) {
  DecodeCompanded<CompandedSquare>(codes, scales, blocks, values, meanwhile);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace optshard
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace optshard {
namespace {

HWY_EXPORT(EncodeDynamicSigned);
HWY_EXPORT(EncodeDynamicUnsigned);
HWY_EXPORT(DecodeDynamicSigned);
HWY_EXPORT(DecodeDynamicUnsigned);
HWY_EXPORT(EncodeAverages);
HWY_EXPORT(EncodeSquares);
HWY_EXPORT(DecodeAverages);
HWY_EXPORT(DecodeSquares);

bool IsDynamic(BlockCode code) {
  return code == BlockCode::kDynamicSigned || code == BlockCode::kDynamicUnsigned;
}

int64_t ScaleSize(BlockCode code) { return IsDynamic(code) ? sizeof(float) : sizeof(uint16_t); }

void EncodeBlocks(const float* values, int64_t blocks, const CodedArray& to,
                  LinesAhead* meanwhile) {
  switch (to.code) {
    case BlockCode::kDynamicSigned:
      return HWY_DYNAMIC_DISPATCH(EncodeDynamicSigned)(values, blocks, to.codes, to.scales,
                                                       meanwhile);
    case BlockCode::kDynamicUnsigned:
      return HWY_DYNAMIC_DISPATCH(EncodeDynamicUnsigned)(values, blocks, to.codes, to.scales,
                                                         meanwhile);
    case BlockCode::kCompandedAverage:
      return HWY_DYNAMIC_DISPATCH(EncodeAverages)(values, blocks, to.codes, to.scales, meanwhile);
    case BlockCode::kCompandedSquare:
      return HWY_DYNAMIC_DISPATCH(EncodeSquares)(values, blocks, to.codes, to.scales, meanwhile);
  }
}

void DecodeBlocks(const CodedArray& from, int64_t blocks, float* values, LinesAhead* meanwhile) {
  switch (from.code) {
    case BlockCode::kDynamicSigned:
      return HWY_DYNAMIC_DISPATCH(DecodeDynamicSigned)(from.codes, from.scales, blocks, values,
                                                       meanwhile);
    case BlockCode::kDynamicUnsigned:
      return HWY_DYNAMIC_DISPATCH(DecodeDynamicUnsigned)(from.codes, from.scales, blocks, values,
                                                         meanwhile);
    case BlockCode::kCompandedAverage:
      return HWY_DYNAMIC_DISPATCH(DecodeAverages)(from.codes, from.scales, blocks, values,
                                                  meanwhile);
    case BlockCode::kCompandedSquare:
      return HWY_DYNAMIC_DISPATCH(DecodeSquares)(from.codes, from.scales, blocks, values,
                                                 meanwhile);
  }
}

}  // namespace

int64_t BlockElements(BlockCode code) { return IsDynamic(code) ? 256 : 32; }

int64_t CodeBytes(BlockCode, int64_t elements) { return elements; }

int64_t ScaleBytes(BlockCode code, int64_t elements) {
  const int64_t block = BlockElements(code);
  return (elements / block + (elements % block != 0 ? 1 : 0)) * ScaleSize(code);
}

CodedArray CodedArray::From(int64_t index) const {
  if (codes == nullptr) return *this;
  CodedArray later = *this;
  later.codes += CodeBytes(code, index);
  later.scales = static_cast<char*>(scales) + ScaleBytes(code, index);
  return later;
}

void Encode(const float* values, int64_t elements, const CodedArray& to, LinesAhead* meanwhile) {
  const int64_t block = BlockElements(to.code);
  const int64_t whole = elements / block;
  EncodeBlocks(values, whole, to, meanwhile);
  const int64_t rest = elements - whole * block;
  if (rest == 0) return;
  // What is not there counts as zeros.
  alignas(64) float padded[kCodeGrid] = {};
  alignas(64) uint8_t codes[kCodeGrid];
  std::memcpy(padded, values + whole * block, rest * sizeof(float));
  const CodedArray last = to.From(whole * block);
  EncodeBlocks(padded, 1, {to.code, codes, last.scales}, meanwhile);
  std::memcpy(last.codes, codes, rest);
}

void Decode(const CodedArray& from, int64_t elements, float* values, LinesAhead* meanwhile) {
  const int64_t block = BlockElements(from.code);
  const int64_t whole = elements / block;
  DecodeBlocks(from, whole, values, meanwhile);
  const int64_t rest = elements - whole * block;
  if (rest == 0) return;
  alignas(64) float padded[kCodeGrid];
  alignas(64) uint8_t codes[kCodeGrid] = {};
  const CodedArray last = from.From(whole * block);
  std::memcpy(codes, last.codes, rest);
  DecodeBlocks({from.code, codes, last.scales}, 1, padded, meanwhile);
  std::memcpy(values + whole * block, padded, rest * sizeof(float));
}

}  // namespace optshard
#endif  // HWY_ONCE
