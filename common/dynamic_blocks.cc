#include <cstring>

#include "common/coded_blocks.h"
#include "common/half.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "common/dynamic_blocks.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "common/simd/coded_blocks-inl.h"
#include "common/simd/dynamic_code-inl.h"
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
using coded_blocks::Words;
constexpr int64_t kDynamicBlock = 256;

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

void EncodeBlocks(const float* values, int64_t blocks, const CodedArray& to,
                  LinesAhead* meanwhile) {
  const auto encode =
      to.code == BlockCode::kDynamicSigned ? EncodeDynamic<true> : EncodeDynamic<false>;
  encode(values, blocks, to.codes, to.scales, meanwhile);
}
void DecodeBlocks(const CodedArray& from, int64_t blocks, float* values, LinesAhead* meanwhile) {
  const auto decode =
      from.code == BlockCode::kDynamicSigned ? DecodeDynamic<true> : DecodeDynamic<false>;
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

void EncodeDynamicBlocks(const float* values, int64_t blocks, const CodedArray& to,
                         LinesAhead* meanwhile) {
  HWY_DYNAMIC_DISPATCH(EncodeBlocks)(values, blocks, to, meanwhile);
}

void DecodeDynamicBlocks(const CodedArray& from, int64_t blocks, float* values,
                         LinesAhead* meanwhile) {
  HWY_DYNAMIC_DISPATCH(DecodeBlocks)(from, blocks, values, meanwhile);
}

}  // namespace optshard
#endif  // HWY_ONCE
