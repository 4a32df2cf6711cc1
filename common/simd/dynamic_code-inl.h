// Vectors of float32 to codes of a dynamic map and back. Compiled once for every instruction set.
#if defined(OPTSHARD_COMMON_SIMD_DYNAMIC_CODE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OPTSHARD_COMMON_SIMD_DYNAMIC_CODE_INL_H_
#undef OPTSHARD_COMMON_SIMD_DYNAMIC_CODE_INL_H_
#else
#define OPTSHARD_COMMON_SIMD_DYNAMIC_CODE_INL_H_
#endif

#include <cstdint>

#include "common/dynamic_map.h"
#include "common/simd/code_places-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace optshard {
namespace HWY_NAMESPACE {

// One of the maps, its tables in registers: to be made outside the loop, as a local variable. The
// table of middles is looked into only where arithmetic leaves a doubt: a gather takes longer than
// all the rest.
template <bool kSigned>
class DynamicVectors {
  using Floats = hwy::HWY_NAMESPACE::ScalableTag<float>;
  using Ints = hwy::HWY_NAMESPACE::RebindToSigned<Floats>;
  using Bytes = hwy::HWY_NAMESPACE::Rebind<uint8_t, Ints>;
  using Vector = hwy::HWY_NAMESPACE::Vec<Floats>;
  using Words = hwy::HWY_NAMESPACE::Vec<Ints>;
  using IntMask = hwy::HWY_NAMESPACE::Mask<Ints>;

 public:
  HWY_INLINE DynamicVectors() = default;

  // How many vectors are coded together.
  static constexpr int kVectors = CodesOfPlaces::kVectors;

  // Of kVectors vectors that are divided by their block's scale; `inverse` is 1 / scale, a normal
  // number. Stores a byte a lane.
  HWY_INLINE void Encode(const float* values, Vector scale, Vector inverse, uint8_t* codes) const {
    namespace hn = hwy::HWY_NAMESPACE;
    const int64_t lanes = hn::Lanes(Floats());
    const auto at = [values, lanes](int v) { return hn::LoadU(Floats(), values + v * lanes); };
    const Coded a = Code(at(0), scale, inverse);
    const Coded b = Code(at(1), scale, inverse);
    const Coded c = Code(at(2), scale, inverse);
    const Coded d = Code(at(3), scale, inverse);
    codes_.Store(a.bits, b.bits, c.bits, d.bits, codes);
    const auto in_doubt = hn::Or(hn::Or(a.in_doubt, b.in_doubt), hn::Or(c.in_doubt, d.in_doubt));
    if (HWY_LIKELY(hn::AllFalse(Ints(), in_doubt))) return;
    Exactly(a.in_doubt, hn::Div(at(0), scale), codes);
    Exactly(b.in_doubt, hn::Div(at(1), scale), codes + lanes);
    Exactly(c.in_doubt, hn::Div(at(2), scale), codes + 2 * lanes);
    Exactly(d.in_doubt, hn::Div(at(3), scale), codes + 3 * lanes);
  }

  // To be multiplied with the scale.
  HWY_INLINE Vector Decode(const uint8_t* codes) const {
    namespace hn = hwy::HWY_NAMESPACE;
    const Words code = hn::PromoteTo(Ints(), hn::LoadU(Bytes(), codes));
    const Words from_zero = kSigned ? hn::Sub(code, hn::Set(Ints(), 127)) : code;
    const Words rank = hn::Abs(from_zero);
    const Words bits = hn::BitCast(
        Ints(), hn::ConvertTo(Floats(), kSigned ? rank : hn::Add(rank, hn::Set(Ints(), 1))));
    const Words exponent = hn::ShiftRight<23>(bits);
    const Words section =
        hn::Max(hn::Sub(exponent, hn::Set(Ints(), kSigned ? 127 : 128)), hn::Zero(Ints()));
    const Vector one = hn::Set(Floats(), 1.0f);
    const Words fraction_bits = hn::Set(Ints(), 0x007fffff);
    const Vector fraction = hn::Sub(
        hn::BitCast(Floats(), hn::OrAnd(hn::BitCast(Ints(), one), bits, fraction_bits)), one);
    const Vector value = hn::Add(start_.Of(section), hn::Mul(fraction, slope_.Of(section)));
    const auto is_zero = hn::RebindMask(Floats(), hn::Eq(rank, hn::Zero(Ints())));
    if constexpr (!kSigned) return hn::IfThenZeroElse(is_zero, value);
    return hn::IfThenZeroElse(is_zero, WithSignOf(hn::BitCast(Floats(), from_zero), value));
  }

 private:
  // Long vectors look numbers up in one instruction, and arithmetic, not memory, is what coding
  // waits for. Short ones find sections by comparing, for which the quotient must be exact.
  static constexpr bool kLooksUp = hwy::HWY_NAMESPACE::MaxLanes(Floats()) >= 16;
  // Added to a place between two codes.
  static constexpr float kBase =
      code_places::kOffset + (kSigned ? 127 : 0) + DynamicMap::kPlaceDoubt;

  struct Section {
    Words index;
    IntMask in_doubt;  // near to where a section begins
  };

  // Numbers of the sections.
  class Table {
   public:
    HWY_INLINE explicit Table(const DynamicMap::PerSection& numbers, float plus = 0)
        : numbers_(numbers),
          plus_(plus),
          sums_(hwy::HWY_NAMESPACE::Add(hwy::HWY_NAMESPACE::Load(Floats(), numbers),
                                        hwy::HWY_NAMESPACE::Set(Floats(), plus))) {}

    HWY_INLINE Vector Of(Words section) const {
      namespace hn = hwy::HWY_NAMESPACE;
      if constexpr (hn::MaxLanes(Floats()) >= DynamicMap::kSections) {
        return hn::TableLookupLanes(sums_, hn::IndicesFromVec(Floats(), section));
      } else {
        Vector number = hn::Set(Floats(), numbers_[0] + plus_);
        for (int s = 1; s < DynamicMap::kSections; ++s) {
          const auto here = hn::RebindMask(Floats(), hn::Eq(section, hn::Set(Ints(), s)));
          number = hn::IfThenElse(here, hn::Set(Floats(), numbers_[s] + plus_), number);
        }
        return number;
      }
    }

   private:
    const DynamicMap::PerSection& numbers_;
    float plus_;
    Vector sums_;  // as many as a vector has lanes
  };

  static HWY_INLINE const DynamicMap& Map() {
    return kSigned ? DynamicMap::Signed() : DynamicMap::Unsigned();
  }

  struct Coded {
    Words bits;  // of a place plus kBase
    IntMask in_doubt;
  };

  HWY_INLINE Coded Code(Vector values, Vector scale, Vector inverse) const {
    namespace hn = hwy::HWY_NAMESPACE;
    const Vector x = kLooksUp ? hn::Mul(values, inverse) : hn::Div(values, scale);
    const Vector size = hn::Max(kSigned ? hn::Abs(x) : x, hn::Set(Floats(), DynamicMap::kSmallest));
    const Section section = SectionOf(size);
    Vector sum = hn::Min(hn::MulAdd(size, scale_.Of(section.index), offset_.Of(section.index)),
                         limit_.Of(section.index));
    if constexpr (kSigned) {
      // There is no -1.
      const Vector place = hn::Max(WithSignOf(x, sum), hn::Set(Floats(), -127.0f));
      sum = hn::Add(place, hn::Set(Floats(), kBase));
    }
    const Words bits = hn::BitCast(Ints(), sum);
    return {bits, hn::Or(section.in_doubt, code_places::IsInDoubt(bits, DynamicMap::kPlaceDoubt))};
  }

  HWY_INLINE Section SectionOf(Vector size) const {
    namespace hn = hwy::HWY_NAMESPACE;
    if constexpr (kLooksUp) {
      const Words bits = hn::BitCast(Ints(), size);
      const Words octaves = hn::And(hn::ShiftRight<24>(bits), hn::Set(Ints(), 15));
      const auto lanes = hn::IndicesFromVec(Ints(), octaves);
      const Words before = hn::TableLookupLanes(octave_sections_, lanes);
      const Words beyond = hn::Sub(bits, hn::TableLookupLanes(octave_begins_, lanes));
      const auto is_beyond = hn::Gt(beyond, hn::Set(Ints(), -1));
      const auto is_near =
          hn::Eq(hn::AndNot(hn::Set(Ints(), 2 * DynamicMap::kQuotientDoubt - 1), beyond),
                 hn::Zero(Ints()));
      return {hn::IfThenElse(is_beyond, hn::Add(before, hn::Set(Ints(), 1)), before), is_near};
    } else {
      Words index = hn::Zero(Ints());
      for (int s = 1; s < DynamicMap::kSections; ++s) {
        const auto beyond = hn::Ge(size, hn::Set(Floats(), map_.begins[s]));
        index = hn::Sub(index, hn::VecFromMask(Ints(), hn::RebindMask(Ints(), beyond)));
      }
      return {index, hn::MaskFromVec(hn::Zero(Ints()))};
    }
  }

  // `value` is not negative.
  static HWY_INLINE Vector WithSignOf(Vector from, Vector value) {
    namespace hn = hwy::HWY_NAMESPACE;
    return hn::OrAnd(value, from, hn::Set(Floats(), -0.0f));
  }

  // Where in doubt, a code is nearly right.
  static HWY_NOINLINE void Exactly(IntMask in_doubt, Vector quotient, uint8_t* codes) {
    namespace hn = hwy::HWY_NAMESPACE;
    alignas(64) int32_t doubts[hn::MaxLanes(Floats())];
    alignas(64) float quotients[hn::MaxLanes(Floats())];
    hn::Store(hn::VecFromMask(Ints(), in_doubt), Ints(), doubts);
    hn::Store(quotient, Floats(), quotients);
    for (size_t i = 0; i < hn::Lanes(Floats()); ++i) {
      if (doubts[i] != 0) codes[i] = Map().CodeFrom(codes[i], quotients[i]);
    }
  }

  const DynamicMap& map_ = Map();
  const Table start_{map_.start}, slope_{map_.slope};
  const Table scale_{map_.scale};
  const Table offset_{map_.offset, kSigned ? 0 : kBase}, limit_{map_.limit, kSigned ? 0 : kBase};
  // From these on a section's begin is in doubt.
  const Words octave_begins_ = hwy::HWY_NAMESPACE::Sub(
      hwy::HWY_NAMESPACE::BitCast(Ints(), hwy::HWY_NAMESPACE::Load(Floats(), map_.octave_begins)),
      hwy::HWY_NAMESPACE::Set(Ints(), DynamicMap::kQuotientDoubt));
  const Words octave_sections_ = hwy::HWY_NAMESPACE::Load(Ints(), map_.octave_sections);
  const CodesOfPlaces codes_{};
};

}  // namespace HWY_NAMESPACE
}  // namespace optshard
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
