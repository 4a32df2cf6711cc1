// Codes that are found as places: numbers whose nearest whole one is the code. Compiled once for
// every instruction set.
#if defined(OPTSHARD_COMMON_SIMD_CODE_PLACES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OPTSHARD_COMMON_SIMD_CODE_PLACES_INL_H_
#undef OPTSHARD_COMMON_SIMD_CODE_PLACES_INL_H_
#else
#define OPTSHARD_COMMON_SIMD_CODE_PLACES_INL_H_
#endif

#include <array>
#include <cstdint>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace optshard {
namespace HWY_NAMESPACE {

// sum = place + kOffset + doubt, a float between 512 and 1024, where floats are 2^-14 apart. Its
// last 14 bits are how far the place is above (the middle of two codes - doubt), in units of 2^-14;
// the 8 bits before them are the code.
namespace code_places {

constexpr float kOffset = 768.5f;
constexpr int kFractionBits = 14;

// Whether the places of such sums are within `doubt`, a power of two, of the middle of two codes.
// Not for NaN.
template <class Words>
HWY_INLINE auto IsInDoubt(Words bits, float doubt) {
  namespace hn = hwy::HWY_NAMESPACE;
  const hn::DFromV<Words> words;
  const int32_t beyond =
      (1 << kFractionBits) - static_cast<int32_t>(2 * doubt * (1 << kFractionBits));
  return hn::Eq(hn::And(bits, hn::Set(words, beyond)), hn::Zero(words));
}

// Of each 128 bits, as little-endian words: byte 0 of all lanes, then byte 1 and so on.
alignas(64) inline constexpr int32_t kByteOrder[16] = {
    0x0c080400, 0x0d090501, 0x0e0a0602, 0x0f0b0703, 0x0c080400, 0x0d090501, 0x0e0a0602, 0x0f0b0703,
    0x0c080400, 0x0d090501, 0x0e0a0602, 0x0f0b0703, 0x0c080400, 0x0d090501, 0x0e0a0602, 0x0f0b0703};

// How many vectors' codes are stored together.
constexpr int kVectors = 4;

constexpr size_t kLanes = hwy::HWY_NAMESPACE::MaxLanes(hwy::HWY_NAMESPACE::ScalableTag<int32_t>());
constexpr std::array<int32_t, kLanes> LaneOrder() {
  std::array<int32_t, kLanes> order = {};
  constexpr size_t kQuads = kLanes < kVectors ? 1 : kLanes / kVectors;
  for (size_t lane = 0; lane < kLanes; ++lane) {
    order[lane] = lane % kQuads * kVectors + lane / kQuads;
  }
  return order;
}
alignas(64) inline constexpr std::array<int32_t, kLanes> kLaneOrder = LaneOrder();

}  // namespace code_places

// Takes the codes out of sums of places. Its tables are in registers: to be made outside the loop,
// as a local variable.
class CodesOfPlaces {
  using Ints = hwy::HWY_NAMESPACE::ScalableTag<int32_t>;
  using Words = hwy::HWY_NAMESPACE::Vec<Ints>;

 public:
  HWY_INLINE CodesOfPlaces() = default;

  static constexpr int kVectors = code_places::kVectors;

  // Of each lane a byte: those of `a`, then those of `b` and so on.
  HWY_INLINE void Store(Words a, Words b, Words c, Words d, uint8_t* codes) const {
    namespace hn = hwy::HWY_NAMESPACE;
    constexpr int kFractionBits = code_places::kFractionBits;
#if HWY_TARGET == HWY_SCALAR
    const Words vectors[kVectors] = {a, b, c, d};
    for (int v = 0; v < kVectors; ++v) {
      codes[v] = static_cast<uint8_t>(hn::GetLane(vectors[v]) >> kFractionBits);
    }
#else
    // The four codes of a lane beside each other, then those of a vector.
    const auto byte = [](uint32_t mask) {
      return hn::BitCast(Ints(), hn::Set(hn::RebindToUnsigned<Ints>(), mask));
    };
    Words four = hn::And(hn::ShiftRight<kFractionBits>(a), byte(0xff));
    four = hn::OrAnd(four, hn::ShiftRight<kFractionBits - 8>(b), byte(0xff00));
    four = hn::OrAnd(four, hn::ShiftLeft<16 - kFractionBits>(c), byte(0xff0000));
    four = hn::OrAnd(four, hn::ShiftLeft<24 - kFractionBits>(d), byte(0xff000000));
    const Words quads = hn::TableLookupBytes(four, byte_order_);
    const Words in_order = hn::TableLookupLanes(quads, hn::IndicesFromVec(Ints(), lane_order_));
    const hn::Repartition<uint8_t, Ints> as_bytes;
    hn::StoreU(hn::BitCast(as_bytes, in_order), as_bytes, codes);
#endif
  }

 private:
  const Words byte_order_ = hwy::HWY_NAMESPACE::Load(Ints(), code_places::kByteOrder);
  const Words lane_order_ = hwy::HWY_NAMESPACE::Load(Ints(), code_places::kLaneOrder.data());
};

}  // namespace HWY_NAMESPACE
}  // namespace optshard
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
