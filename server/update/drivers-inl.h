// The loop that runs a formula over a span: element by element, or vector by vector; over one
// gradient, or in one pass over those of several replicas. Compiled once for every instruction set.
#if defined(OPTSHARD_SERVER_UPDATE_DRIVERS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OPTSHARD_SERVER_UPDATE_DRIVERS_INL_H_
#undef OPTSHARD_SERVER_UPDATE_DRIVERS_INL_H_
#else
#define OPTSHARD_SERVER_UPDATE_DRIVERS_INL_H_
#endif

#include <cstdint>

#include "hwy/highway.h"
#include "server/update/element_wise_rule.h"
#include "server/update/formula-inl.h"
#include "server/update/lanes-inl.h"
#include "server/update/replicas-inl.h"
#include "server/update/scalar.h"

HWY_BEFORE_NAMESPACE();
namespace optshard {
namespace HWY_NAMESPACE {

// One pass over memory, an element or a vector of them at a time. Returns how many elements are
// done: all, or as many whole vectors as there are.
template <class Formula, class E, int N, class Gradient, class Copies>
int64_t RunOver(const FormulaArguments& arguments) {
  const int64_t width = E::Width();
  const Constants<E> constants(arguments.coefficients);
  const Gradient gradient(arguments);
  const Copies copies(arguments);
  int64_t i = 0;
  for (; i + width <= arguments.elements; i += width) {
    if (BeginsLine<E>(i)) {
      gradient.FetchAhead(i);
      FetchAhead(arguments.parameter + i);
      for (int k = 0; k < N; ++k) FetchAhead(arguments.slots[k] + i);
    }
    E parameter = E::Load(arguments.parameter + i);
    Slots<E, N> slots;
    for (int k = 0; k < N; ++k) slots[k] = E::Load(arguments.slots[k] + i);
    Formula::template Apply<E, N>(constants, gradient.At(i), parameter, slots);
    for (int k = 0; k < N; ++k) slots[k].Store(arguments.slots[k] + i);
    parameter.Store(arguments.parameter + i);
    copies.Write(i, parameter);
  }
  copies.Finish(i);
  return i;
}

template <int... kSlotCounts>
HWY_INLINE bool IsOneOf(VariantsBySlots<kSlotCounts...>, int slot_count) {
  return ((slot_count == kSlotCounts) || ...);
}

template <class Formula>
bool HasVariant(int slot_count) {
  return IsOneOf(typename Formula::Variants(), slot_count);
}

template <class Formula, class E, int N, class Gradient>
HWY_INLINE int64_t RunWithCopies(const FormulaArguments& arguments) {
  if (arguments.copy_count == 0) return RunOver<Formula, E, N, Gradient, NoCopies<E>>(arguments);
  if constexpr (E::kIsVector) {
    if (CanStream(arguments)) {
      return RunOver<Formula, E, N, Gradient, StreamedCopies<E>>(arguments);
    }
  }
  return RunOver<Formula, E, N, Gradient, StoredCopies<E>>(arguments);
}

template <class Formula, class E, int N>
HWY_INLINE int64_t Run(const FormulaArguments& arguments) {
  switch (GradientsOf(arguments)) {
    case Gradients::kOne:
      return RunWithCopies<Formula, E, N, OneGradient<E>>(arguments);
    case Gradients::kTwo:
      return RunWithCopies<Formula, E, N, AverageOfTwo<E>>(arguments);
    case Gradients::kTree:
      break;
  }
  return RunWithCopies<Formula, E, N, AverageOfTree<E>>(arguments);
}

template <class E, class Formula, int... kSlotCounts>
HWY_INLINE int64_t RunVariant(VariantsBySlots<kSlotCounts...>, const FormulaArguments& arguments) {
  int64_t done = 0;
  (void)((arguments.slot_count == kSlotCounts &&
          (done = Run<Formula, E, kSlotCounts>(arguments), true)) ||
         ...);
  return done;
}

// What RunOver returns. E: Scalar or Lanes.
template <class E, class Formula>
int64_t UpdateWith(const FormulaArguments& arguments) {
  return RunVariant<E, Formula>(typename Formula::Variants(), arguments);
}

}  // namespace HWY_NAMESPACE
}  // namespace optshard
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
