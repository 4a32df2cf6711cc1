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

// Times a power of two, so that the inverse of the scale is a normal number. What it rounds has
// quotients near 0.
void ShiftBlock(const float* values, float shift, float* shifted) {
  for (int64_t i = 0; i < kDynamicBlock; i += Lanes::Width()) {
    hn::StoreU(hn::Mul(hn::LoadU(Floats(), values + i), hn::Set(Floats(), shift)), Floats(),
               shifted + i);
  }
}

template <bool kSigned>
void EncodeDynamicBlock(const float* values, float scale, uint8_t* codes) {
  const DynamicVectors<kSigned> vectors;
  const auto divisor = hn::Set(Floats(), scale);
  const auto inverse = hn::Set(Floats(), 1 / scale);
  constexpr int kVectors = DynamicVectors<kSigned>::kVectors;
  for (int64_t i = 0; i < kDynamicBlock; i += kVectors * Lanes::Width()) {
    vectors.Encode(values + i, divisor, inverse, codes + i);
  }
}

// The functions below do whole blocks.

// The largest values of so many blocks are found before the first one's codes, which else would
// wait for its scale.
constexpr int64_t kDynamicBlocksAtOnce = 4;

template <bool kSigned>
void EncodeDynamic(const float* values, int64_t blocks, uint8_t* codes, void* scales) {
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
        EncodeDynamicBlock<kSigned>(shifted, scale * shift, to);
      } else {
        EncodeDynamicBlock<kSigned>(block, scale, to);
      }
    }
  }
}

template <bool kSigned>
void DecodeDynamic(const uint8_t* codes, const void* scales, int64_t blocks, float* values) {
  const DynamicVectors<kSigned> vectors;
  for (int64_t b = 0; b < blocks; ++b) {
    const auto scale = hn::Set(Floats(), static_cast<const float*>(scales)[b]);
    for (int64_t i = b * kDynamicBlock; i < (b + 1) * kDynamicBlock; i += Lanes::Width()) {
      if (i % kLineBytes == 0) FetchAhead(codes + i);
      // A negative value times a scale of 0 is -0, and adding 0 makes that 0.
      const auto value = hn::Add(hn::Mul(vectors.Decode(codes + i), scale), hn::Zero(Floats()));
      hn::StoreU(value, Floats(), values + i);
    }
  }
}

void EncodeDynamicSigned(const float* values, int64_t blocks, uint8_t* codes, void* scales) {
  EncodeDynamic<true>(values, blocks, codes, scales);
}
void EncodeDynamicUnsigned(const float* values, int64_t blocks, uint8_t* codes, void* scales) {
  EncodeDynamic<false>(values, blocks, codes, scales);
}
void DecodeDynamicSigned(const uint8_t* codes, const void* scales, int64_t blocks, float* values) {
  DecodeDynamic<true>(codes, scales, blocks, values);
}
void DecodeDynamicUnsigned(const uint8_t* codes, const void* scales, int64_t blocks,
                           float* values) {
  DecodeDynamic<false>(codes, scales, blocks, values);
}

// Scales are computed for so many blocks at once: a multiple of every vector's lanes.
constexpr int64_t kBlocksAtOnce = 32;

template <class Companded>
void EncodeCompanded(const float* values, int64_t blocks, uint8_t* codes, void* scales) {
  for (int64_t begin = 0; begin < blocks; begin += kBlocksAtOnce) {
    const int64_t count = blocks - begin < kBlocksAtOnce ? blocks - begin : kBlocksAtOnce;
    alignas(64) int32_t largest[kBlocksAtOnce] = {};
    for (int64_t b = 0; b < count; ++b) {
      largest[b] = LargestBits(values + (begin + b) * kCompandedBlock, kCompandedBlock);
    }
    alignas(64) uint16_t halves[kBlocksAtOnce];
    alignas(64) float divisors[kBlocksAtOnce];
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
      StoreHalf<Float16>(Lanes(scale), halves + b);
      Lanes kept;
      LoadHalf<Float16>(halves + b, kept);
      hn::Store(Companded::Divisor(kept.raw), Floats(), divisors + b);
    }
    std::memcpy(static_cast<uint16_t*>(scales) + begin, halves, count * sizeof(uint16_t));
    for (int64_t b = 0; b < count; ++b) {
      const float* const block = values + (begin + b) * kCompandedBlock;
      uint8_t* const to = codes + (begin + b) * kCompandedBlock;
      if (largest[b] == 0 || largest[b] >= kInfinityBits) {
        std::memset(to, 0, kCompandedBlock);
        continue;
      }
      const auto divisor = hn::Set(Floats(), divisors[b]);
      for (int64_t i = 0; i < kCompandedBlock; i += Lanes::Width()) {
        Companded::Encode(hn::LoadU(Floats(), block + i), divisor, to + i);
      }
    }
  }
}

template <class Companded>
void DecodeCompanded(const uint8_t* codes, const void* scales, int64_t blocks, float* values) {
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
      const auto scale = hn::Set(Floats(), widened[b]);
      for (int64_t i = first; i < first + kCompandedBlock; i += Lanes::Width()) {
        hn::StoreU(Companded::Decode(codes + i, scale), Floats(), values + i);
      }
    }
  }
}

void EncodeAverages(const float* values, int64_t blocks, uint8_t* codes, void* scales) {
  EncodeCompanded<CompandedAverage>(values, blocks, codes, scales);
}
void EncodeSquares(const float* values, int64_t blocks, uint8_t* codes, void* scales) {
  EncodeCompanded<CompandedSquare>(values, blocks, codes, scales);
}
void DecodeAverages(const uint8_t* codes, const void* scales, int64_t blocks, float* values) {
  DecodeCompanded<CompandedAverage>(codes, scales, blocks, values);
}
void DecodeSquares(const uint8_t* codes, const void* scales, int64_t blocks, float* values) {
  DecodeCompanded<CompandedSquare>(codes, scales, blocks, values);
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

void EncodeBlocks(const float* values, int64_t blocks, const CodedArray& to) {
  switch (to.code) {
    case BlockCode::kDynamicSigned:
      return HWY_DYNAMIC_DISPATCH(EncodeDynamicSigned)(values, blocks, to.codes, to.scales);
    case BlockCode::kDynamicUnsigned:
      return HWY_DYNAMIC_DISPATCH(EncodeDynamicUnsigned)(values, blocks, to.codes, to.scales);
    case BlockCode::kCompandedAverage:
      return HWY_DYNAMIC_DISPATCH(EncodeAverages)(values, blocks, to.codes, to.scales);
    case BlockCode::kCompandedSquare:
      return HWY_DYNAMIC_DISPATCH(EncodeSquares)(values, blocks, to.codes, to.scales);
  }
}

void DecodeBlocks(const CodedArray& from, int64_t blocks, float* values) {
  switch (from.code) {
    case BlockCode::kDynamicSigned:
      return HWY_DYNAMIC_DISPATCH(DecodeDynamicSigned)(from.codes, from.scales, blocks, values);
    case BlockCode::kDynamicUnsigned:
      return HWY_DYNAMIC_DISPATCH(DecodeDynamicUnsigned)(from.codes, from.scales, blocks, values);
    case BlockCode::kCompandedAverage:
      return HWY_DYNAMIC_DISPATCH(DecodeAverages)(from.codes, from.scales, blocks, values);
    case BlockCode::kCompandedSquare:
      return HWY_DYNAMIC_DISPATCH(DecodeSquares)(from.codes, from.scales, blocks, values);
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

void Encode(const float* values, int64_t elements, const CodedArray& to) {
  const int64_t block = BlockElements(to.code);
  const int64_t whole = elements / block;
  EncodeBlocks(values, whole, to);
  const int64_t rest = elements - whole * block;
  if (rest == 0) return;
  // What is not there counts as zeros.
  alignas(64) float padded[kCodeGrid] = {};
  alignas(64) uint8_t codes[kCodeGrid];
  std::memcpy(padded, values + whole * block, rest * sizeof(float));
  const CodedArray last = to.From(whole * block);
  EncodeBlocks(padded, 1, {to.code, codes, last.scales});
  std::memcpy(last.codes, codes, rest);
}

void Decode(const CodedArray& from, int64_t elements, float* values) {
  const int64_t block = BlockElements(from.code);
  const int64_t whole = elements / block;
  DecodeBlocks(from, whole, values);
  const int64_t rest = elements - whole * block;
  if (rest == 0) return;
  alignas(64) float padded[kCodeGrid];
  alignas(64) uint8_t codes[kCodeGrid] = {};
  const CodedArray last = from.From(whole * block);
  std::memcpy(codes, last.codes, rest);
  DecodeBlocks({from.code, codes, last.scales}, 1, padded);
  std::memcpy(values + whole * block, padded, rest * sizeof(float));
}

}  // namespace optshard
#endif  // HWY_ONCE
