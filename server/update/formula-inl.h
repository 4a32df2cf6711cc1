// The vocabulary of formulas beyond the element's own operators. E is the element: one number
// (scalar.h) or a vector of them (lanes-inl.h). Compiled once for every instruction set, and for
// GPUs, where the element is one number.
#if defined(OPTSHARD_SERVER_UPDATE_FORMULA_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OPTSHARD_SERVER_UPDATE_FORMULA_INL_H_
#undef OPTSHARD_SERVER_UPDATE_FORMULA_INL_H_
#else
#define OPTSHARD_SERVER_UPDATE_FORMULA_INL_H_
#endif

#include "server/update/formula_limits.h"
#include "server/update/formula_target-inl.h"

OPTSHARD_BEFORE_TARGET();
namespace optshard {
namespace OPTSHARD_TARGET {

// The sets of slots that a rule's variants have. For Adam without and with amsgrad:
//   VariantsBySlots<SlotSetOf(kExpAvg, kExpAvgSq), SlotSetOf(kExpAvg, kExpAvgSq, kMaxExpAvgSq)>
template <SlotSet... kSlotSets>
struct VariantsBySlots {};

// `slots`: indices in RuleSpec::slots.
template <class... Index>
constexpr SlotSet SlotSetOf(Index... slots) {
  return (SlotSet{0} | ... | (SlotSet{1} << static_cast<int>(slots)));
}

// The coefficients, the same for every element of the span.
template <class E>
class Constants {
  using Number = typename E::Number;

 public:
  // Copied: the compiler knows then that writing an element does not change them.
  OPTSHARD_FORMULA explicit Constants(const Number* values) {
    for (int k = 0; k < kMaxCoefficients; ++k) values_[k] = values[k];
  }
  OPTSHARD_FORMULA E operator[](int index) const { return E(values_[index]); }
  // To be compared, or handed to Lerp; not to compute with. A formula may branch on it, since all
  // elements take the same branch. That costs next to nothing, while Select computes both sides for
  // every element.
  OPTSHARD_FORMULA Number number(int index) const { return values_[index]; }

 private:
  Number values_[kMaxCoefficients];
};

// The slots of one element. Indices are those of RuleSpec::slots, and known when this is compiled.
template <class E, SlotSet kSlots>
class Slots {
 public:
  static constexpr int kCount = __builtin_popcount(kSlots);
  static OPTSHARD_CONSTEXPR_FORMULA bool Has(int index) { return (kSlots >> index & 1) != 0; }
  // Has(index) holds.
  OPTSHARD_FORMULA E& operator[](int index) {
    return values_[__builtin_popcount(kSlots & ((SlotSet{1} << index) - 1))];
  }
  // The k-th of those that exist: for the drivers.
  OPTSHARD_FORMULA E& existing(int k) { return values_[k]; }

 private:
  E values_[kCount > 0 ? kCount : 1];
};

// NaN if either is, as torch.maximum; of two equal ones (+0, -0), b.
template <class E>
OPTSHARD_FORMULA E Max(E a, E b) {
  return Select(a == a, Select(a > b, a, b), a);
}
template <class E>
OPTSHARD_FORMULA E Min(E a, E b) {
  return Select(a == a, Select(b > a, a, b), a);
}

// torch.lerp, from + weight * (to - from), by the form that rounds least: exactly `to` at weight 1,
// and one rounding at 1/2, where both products are exact.
template <class E>
OPTSHARD_FORMULA E Lerp(E from, E to, typename E::Number weight,
                        typename E::Number one_minus_weight) {
  const E difference = to - from;
  if (weight < 0.5f) return from + E(weight) * difference;
  if (weight == 0.5f) return E(0.5f) * from + E(0.5f) * to;
  return to - E(one_minus_weight) * difference;
}

}  // namespace OPTSHARD_TARGET
}  // namespace optshard
OPTSHARD_AFTER_TARGET();

#endif  // per-target include guard
