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
  using Mask = hwy::HWY_NAMESPACE::Mask<Floats>;

 public:
  HWY_INLINE explicit DynamicVectors(const DynamicMap& map) : map_(map) {}

  // Of values that are divided by their block's scale; `inverse` is 1 / scale, a normal number.
  // Stores a byte a lane.
  HWY_INLINE void Encode(Vector values, Vector scale, Vector inverse, uint8_t* codes) const {
    namespace hn = hwy::HWY_NAMESPACE;
    const Vector x = kLooksUp ? hn::Mul(values, inverse) : hn::Div(values, scale);
    const Vector size =
        hn::Max(map_.is_signed ? hn::Abs(x) : x, hn::Set(Floats(), DynamicMap::kSmallest));
    const Section section = SectionOf(size);
    const Vector place =
        hn::Min(hn::MulAdd(size, Of(map_.scale, section.index), Of(map_.offset, section.index)),
                Of(map_.limit, section.index));
    // The sum's last bits are the nearest whole number.
    const Vector whole = hn::Set(Floats(), 0x1.8p23f);
    const Vector sum = hn::Add(place, whole);
    Words rank = hn::Sub(hn::BitCast(Ints(), sum), hn::BitCast(Ints(), whole));
    const Vector from_rank = hn::Abs(hn::Sub(place, hn::Sub(sum, whole)));
    const auto in_doubt = hn::Or(
        section.in_doubt, hn::Gt(from_rank, hn::Set(Floats(), 0.5f - DynamicMap::kPlaceDoubt)));
    if (HWY_UNLIKELY(!hn::AllFalse(Floats(), in_doubt))) {
      rank = Exactly(rank, hn::Div(values, scale));
    }
    if (map_.is_signed) {
      const Words middle = hn::Set(Ints(), 127);
      const auto is_negative = hn::Lt(hn::BitCast(Ints(), x), hn::Zero(Ints()));
      rank = hn::IfThenElse(is_negative, hn::Sub(middle, rank), hn::Add(middle, rank));
    }
    // Of a negative x: there is no -1, and -1 - 127 becomes 0.
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
    const Vector value =
        hn::Add(Of(map_.start, section), hn::Mul(fraction, Of(map_.slope, section)));
    const auto is_zero = hn::RebindMask(Floats(), hn::Eq(rank, hn::Zero(Ints())));
    const Words sign = hn::And(from_zero, hn::Set(Ints(), static_cast<int32_t>(0x80000000u)));
    return hn::IfThenZeroElse(is_zero, hn::Or(value, hn::BitCast(Floats(), sign)));
  }

 private:
  // Long vectors look numbers up in one instruction, and arithmetic, not memory, is what coding
  // waits for. Short ones find sections by comparing, for which the quotient must be exact.
  static constexpr bool kLooksUp = hwy::HWY_NAMESPACE::MaxLanes(Floats()) >= 16;

  struct Section {
    Words index;
    Mask in_doubt;  // near to where a section begins
  };

  HWY_INLINE Section SectionOf(Vector size) const {
    namespace hn = hwy::HWY_NAMESPACE;
    if constexpr (kLooksUp) {
      const Words one = hn::Set(Ints(), 1);
      const Words bits = hn::BitCast(Ints(), size);
      const Words octaves = hn::And(hn::ShiftRight<24>(bits), hn::Set(Ints(), 15));
      const auto lanes = hn::IndicesFromVec(Ints(), octaves);
      const Words begin =
          hn::TableLookupLanes(hn::BitCast(Ints(), hn::Load(Floats(), map_.octave_begins)), lanes);
      const Words before = hn::TableLookupLanes(hn::Load(Ints(), map_.octave_sections), lanes);
      const Words beyond = hn::Sub(bits, begin);
      const auto is_beyond = hn::Gt(beyond, hn::Set(Ints(), -1));
      const auto is_near = hn::Lt(hn::Abs(beyond), hn::Set(Ints(), DynamicMap::kQuotientDoubt + 1));
      return {hn::IfThenElse(is_beyond, hn::Add(before, one), before),
              hn::RebindMask(Floats(), is_near)};
    } else {
      Words index = hn::Zero(Ints());
      for (int s = 1; s < DynamicMap::kSections; ++s) {
        const auto beyond = hn::Ge(size, hn::Set(Floats(), map_.begins[s]));
        index = hn::Sub(index, hn::VecFromMask(Ints(), hn::RebindMask(Ints(), beyond)));
      }
      return {index, hn::MaskFromVec(hn::Zero(Floats()))};
    }
  }

  HWY_INLINE static Vector Of(const DynamicMap::PerSection& numbers, Words section) {
    namespace hn = hwy::HWY_NAMESPACE;
    if constexpr (hn::MaxLanes(Floats()) >= DynamicMap::kSections) {
      return hn::TableLookupLanes(hn::Load(Floats(), numbers),
                                  hn::IndicesFromVec(Floats(), section));
    } else {
      Vector number = hn::Set(Floats(), numbers[0]);
      for (int s = 1; s < DynamicMap::kSections; ++s) {
        const auto here = hn::RebindMask(Floats(), hn::Eq(section, hn::Set(Ints(), s)));
        number = hn::IfThenElse(here, hn::Set(Floats(), numbers[s]), number);
      }
      return number;
    }
  }

  HWY_NOINLINE Words Exactly(Words guess, Vector quotient) const {
    namespace hn = hwy::HWY_NAMESPACE;
    const Vector size = map_.is_signed ? hn::Abs(quotient) : hn::Max(quotient, hn::Zero(Floats()));
    alignas(64) int32_t ranks[hn::MaxLanes(Floats())];
    alignas(64) float sizes[hn::MaxLanes(Floats())];
    hn::Store(guess, Ints(), ranks);
    hn::Store(size, Floats(), sizes);
    for (size_t i = 0; i < hn::Lanes(Floats()); ++i) ranks[i] = map_.RankFrom(ranks[i], sizes[i]);
    return hn::Load(Ints(), ranks);
  }

  const DynamicMap& map_;
};

}  // namespace HWY_NAMESPACE
}  // namespace optshard
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
