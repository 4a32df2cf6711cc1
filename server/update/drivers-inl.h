// The loop that runs a formula over a span: element by element, or vector by vector; over one
// gradient, or in one pass over those of several replicas. Compiled once for every instruction set.
#if defined(OPTSHARD_SERVER_UPDATE_DRIVERS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OPTSHARD_SERVER_UPDATE_DRIVERS_INL_H_
#undef OPTSHARD_SERVER_UPDATE_DRIVERS_INL_H_
#else
#define OPTSHARD_SERVER_UPDATE_DRIVERS_INL_H_
#endif

#include <cstdint>

#include "common/simd/memory-inl.h"
#include "common/simd/tree_average-inl.h"
#include "hwy/highway.h"
#include "server/update/element_wise_rule.h"
#include "server/update/formula-inl.h"
#include "server/update/replicas-inl.h"

HWY_BEFORE_NAMESPACE();
namespace optshard {
namespace HWY_NAMESPACE {

// One pass over memory, an element or a vector of them at a time. Returns how many elements are
// done: all, or as many whole vectors as there are.
template <class Formula, class E, SlotSet kSlots, class Gradient, class Copies>
int64_t RunOver(const ArgumentsOf<E>& arguments) {
  const int64_t width = E::Width();
  const Constants<E> constants(arguments.coefficients);
  const Gradient gradient(arguments);
  Copies copies(arguments);
  constexpr int kCount = Slots<E, kSlots>::kCount;
  int64_t i = 0;
  for (; i + width <= arguments.elements; i += width) {
    if (BeginsLine<E>(i)) {
      gradient.FetchAhead(i);
      FetchAhead(arguments.parameter + i);
      for (int k = 0; k < kCount; ++k) FetchAhead(arguments.slots[k] + i);
    }
    E parameter = E::Load(arguments.parameter + i);
    Slots<E, kSlots> slots;
    for (int k = 0; k < kCount; ++k) slots.existing(k) = E::Load(arguments.slots[k] + i);
    Formula::Apply(constants, gradient.At(i), parameter, slots);
    for (int k = 0; k < kCount; ++k) slots.existing(k).Store(arguments.slots[k] + i);
    parameter.Store(arguments.parameter + i);
    copies.Write(i, parameter);
  }
  copies.Finish(i);
  return i;
}

template <SlotSet... kSlotSets>
HWY_INLINE bool IsOneOf(VariantsBySlots<kSlotSets...>, SlotSet slots) {
  return ((slots == kSlotSets) || ...);
}

template <class Formula>
bool HasVariant(SlotSet slots) {
  return IsOneOf(typename Formula::Variants(), slots);
}

template <class Formula, class E, SlotSet kSlots, class Gradient>
HWY_INLINE int64_t RunWithCopies(const ArgumentsOf<E>& arguments) {
  if (arguments.copy_count == 0)
    return RunOver<Formula, E, kSlots, Gradient, NoCopies<E>>(arguments);
  if constexpr (E::kIsVector) {
    if (CanStream(arguments)) {
      return RunOver<Formula, E, kSlots, Gradient, StreamedCopies<E>>(arguments);
    }
  }
  return RunOver<Formula, E, kSlots, Gradient, StoredCopies<E>>(arguments);
}

// In one pass over bfloat16 replicas, beside a master.
template <class Formula, class E, SlotSet kSlots>
HWY_INLINE int64_t RunRounded(const FormulaArguments<float>& arguments) {
  using Source = Widened<BFloat16>;
  using One = ReplicaGradients<E, AverageOfOne<E, Source>>;
  using Two = ReplicaGradients<E, AverageOfTwo<E, Source>>;
  using Many = ReplicaGradients<E, AverageOfTree<E, Source>>;
  switch (ShapeOf(arguments.gradients)) {
    case TreeShape::kOne:
      return RunOver<Formula, E, kSlots, One, RoundedCopies<E>>(arguments);
    case TreeShape::kTwo:
      return RunOver<Formula, E, kSlots, Two, RoundedCopies<E>>(arguments);
    case TreeShape::kAny:
      break;
  }
  return RunOver<Formula, E, kSlots, Many, RoundedCopies<E>>(arguments);
}

// In one pass over the replicas in float32, or in bfloat16 with a master: what else is averaged and
// copied goes by tiles.
template <class Formula, class E, SlotSet kSlots>
HWY_INLINE int64_t Run(const FormulaArguments<double>& arguments) {
  return RunOver<Formula, E, kSlots, OneGradient<E>, NoCopies<E>>(arguments);
}
template <class Formula, class E, SlotSet kSlots>
HWY_INLINE int64_t Run(const FormulaArguments<float>& arguments) {
  using Two = ReplicaGradients<E, AverageOfTwo<E, Same>>;
  using Many = ReplicaGradients<E, AverageOfTree<E, Same>>;
  if (arguments.rounded != nullptr) return RunRounded<Formula, E, kSlots>(arguments);
  if (arguments.gradients.count == 0) {
    return RunWithCopies<Formula, E, kSlots, OneGradient<E>>(arguments);
  }
  switch (ShapeOf(arguments.gradients)) {
    case TreeShape::kOne:
      return RunWithCopies<Formula, E, kSlots, OneGradient<E>>(arguments);
    case TreeShape::kTwo:
      return RunWithCopies<Formula, E, kSlots, Two>(arguments);
    case TreeShape::kAny:
      break;
  }
  return RunWithCopies<Formula, E, kSlots, Many>(arguments);
}

template <class E, class Formula, SlotSet... kSlotSets>
HWY_INLINE int64_t RunVariant(VariantsBySlots<kSlotSets...>, const ArgumentsOf<E>& arguments) {
  int64_t done = 0;
  (void)((arguments.slot_set == kSlotSets &&
          (done = Run<Formula, E, kSlotSets>(arguments), true)) ||
         ...);
  return done;
}

// What RunOver returns. E: Scalar, Lanes, Scalar64 or Lanes64.
template <class E, class Formula>
int64_t UpdateWith(const ArgumentsOf<E>& arguments) {
  return RunVariant<E, Formula>(typename Formula::Variants(), arguments);
}

}  // namespace HWY_NAMESPACE
}  // namespace optshard
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
