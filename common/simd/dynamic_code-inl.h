// Vectors of float32 to codes of a dynamic map and back. Compiled once for every instruction set.
#if defined(OPTSHARD_COMMON_SIMD_DYNAMIC_CODE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OPTSHARD_COMMON_SIMD_DYNAMIC_CODE_INL_H_
#undef OPTSHARD_COMMON_SIMD_DYNAMIC_CODE_INL_H_
#else
#define OPTSHARD_COMMON_SIMD_DYNAMIC_CODE_INL_H_
#endif

#include <cstdint>

#include "common/dynamic_map.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace optshard {
namespace HWY_NAMESPACE {

// One of the maps. The table of middles is looked into only where arithmetic leaves a doubt: a
// gather takes longer than all the rest.
class DynamicVectors {
  using Floats = hwy::HWY_NAMESPACE::ScalableTag<float>;
  using Ints = hwy::HWY_NAMESPACE::RebindToSigned<Floats>;
  using Bytes = hwy::HWY_NAMESPACE::Rebind<uint8_t, Ints>;
  using Vector = hwy::HWY_NAMESPACE::Vec<Floats>;
  using Words = hwy::HWY_NAMESPACE::Vec<Ints>;

 public:
  HWY_INLINE explicit DynamicVectors(const DynamicMap& map)
      : map_(map),
        start_(map.start),
        slope_(map.slope),
        scale_(map.scale),
        offset_(map.offset),
        limit_(map.limit) {}

  // Of values divided by their block's scale. Stores a byte a lane.
  HWY_INLINE void Encode(Vector x, uint8_t* codes) const {
    namespace hn = hwy::HWY_NAMESPACE;
    const Vector size = map_.is_signed ? hn::Abs(x) : hn::Max(x, hn::Zero(Floats()));
    Words section = hn::Zero(Ints());
    for (int s = 1; s < DynamicMap::kSections; ++s) {
      const auto beyond = hn::Ge(size, hn::Set(Floats(), map_.begins[s]));
      section = hn::Sub(section, hn::VecFromMask(Ints(), hn::RebindMask(Ints(), beyond)));
    }
    const Vector place = hn::Min(hn::Add(hn::Mul(size, scale_.Of(section)), offset_.Of(section)),
                                 limit_.Of(section));
    Words rank = hn::ConvertTo(Ints(), place);
    const Vector from_middle =
        hn::Abs(hn::Sub(hn::Sub(place, hn::ConvertTo(Floats(), rank)), hn::Set(Floats(), 0.5f)));
    const auto doubt = hn::Gt(from_middle, hn::Set(Floats(), 0.5f - DynamicMap::kDoubt));
    if (HWY_UNLIKELY(!hn::AllFalse(Floats(), doubt))) rank = Exactly(rank, size);
    if (map_.is_signed) {
      // 127 + rank or 127 - rank; below 0 there is no 1.
      const Words negative = hn::BroadcastSignBit(hn::BitCast(Ints(), x));
      rank = hn::Sub(hn::Xor(rank, negative), negative);
      rank = hn::Max(hn::Add(rank, hn::Set(Ints(), 127)), hn::Zero(Ints()));
    }
    hn::StoreU(hn::DemoteTo(Bytes(), rank), Bytes(), codes);
  }

  // To be multiplied with the scale.
  HWY_INLINE Vector Decode(const uint8_t* codes) const {
    namespace hn = hwy::HWY_NAMESPACE;
    const Words code = hn::PromoteTo(Ints(), hn::LoadU(Bytes(), codes));
    const Words from_zero = map_.is_signed ? hn::Sub(code, hn::Set(Ints(), 127)) : code;
    const Words rank = hn::Abs(from_zero);
    const Words bits = hn::BitCast(
        Ints(), hn::ConvertTo(Floats(), hn::Add(rank, hn::Set(Ints(), map_.first - 1))));
    const Words exponent = hn::ShiftRight<23>(bits);
    const Words section =
        hn::Max(hn::Sub(exponent, hn::Set(Ints(), 126 + map_.first)), hn::Zero(Ints()));
    const Vector one = hn::Set(Floats(), 1.0f);
    const Words fraction_bits = hn::And(bits, hn::Set(Ints(), 0x007fffff));
    const Vector fraction =
        hn::Sub(hn::BitCast(Floats(), hn::Or(fraction_bits, hn::BitCast(Ints(), one))), one);
    const Vector value = hn::Add(start_.Of(section), hn::Mul(fraction, slope_.Of(section)));
    const auto is_zero = hn::RebindMask(Floats(), hn::Eq(rank, hn::Zero(Ints())));
    const Words sign = hn::And(from_zero, hn::Set(Ints(), static_cast<int32_t>(0x80000000u)));
    return hn::IfThenZeroElse(is_zero, hn::Or(value, hn::BitCast(Floats(), sign)));
  }

 private:
  // One number a section, looked up by lanes.
  class PerSection {
   public:
    HWY_INLINE explicit PerSection(const float* numbers) : numbers_(numbers) {
      for (int s = 0; s < DynamicMap::kSections; ++s) padded_[s] = numbers[s];
    }
    HWY_INLINE Vector Of(Words section) const {
      namespace hn = hwy::HWY_NAMESPACE;
      if constexpr (hn::MaxLanes(Floats()) >= DynamicMap::kSections) {
        return hn::TableLookupLanes(hn::Load(Floats(), padded_),
                                    hn::IndicesFromVec(Floats(), section));
      } else {
        Vector number = hn::Set(Floats(), numbers_[0]);
        for (int s = 1; s < DynamicMap::kSections; ++s) {
          const auto here = hn::RebindMask(Floats(), hn::Eq(section, hn::Set(Ints(), s)));
          number = hn::IfThenElse(here, hn::Set(Floats(), numbers_[s]), number);
        }
        return number;
      }
    }

   private:
    const float* numbers_;
    alignas(64) float padded_[16] = {};
  };

  HWY_NOINLINE Words Exactly(Words guess, Vector size) const {
    namespace hn = hwy::HWY_NAMESPACE;
    alignas(64) int32_t ranks[hn::MaxLanes(Floats())];
    alignas(64) float sizes[hn::MaxLanes(Floats())];
    hn::Store(guess, Ints(), ranks);
    hn::Store(size, Floats(), sizes);
    for (size_t i = 0; i < hn::Lanes(Floats()); ++i) ranks[i] = map_.RankFrom(ranks[i], sizes[i]);
    return hn::Load(Ints(), ranks);
  }

  const DynamicMap& map_;
  const PerSection start_;
  const PerSection slope_;
  const PerSection scale_;
  const PerSection offset_;
  const PerSection limit_;
};

}  // namespace HWY_NAMESPACE
}  // namespace optshard
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
