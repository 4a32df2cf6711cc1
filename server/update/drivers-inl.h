// The loops that run a formula over a span: element by element, and vector by vector. Compiled once
// for every instruction set. Another driver (several replicas in one pass) is another loop here.
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
#include "server/update/scalar.h"

HWY_BEFORE_NAMESPACE();
namespace optshard {
namespace HWY_NAMESPACE {

struct ScalarDriver {
  template <class Formula, int N>
  static int64_t Run(const FormulaArguments& arguments) {
    const Constants<Scalar> constants(arguments.coefficients);
    for (int64_t i = 0; i < arguments.elements; ++i) {
      Scalar parameter(arguments.parameter[i]);
      Slots<Scalar, N> slots;
      for (int k = 0; k < N; ++k) slots[k] = Scalar(arguments.slots[k][i]);
      Formula::template Apply<Scalar, N>(constants, Scalar(arguments.gradient[i]), parameter,
                                         slots);
      for (int k = 0; k < N; ++k) arguments.slots[k][i] = slots[k].raw;
      arguments.parameter[i] = parameter.raw;
    }
    return arguments.elements;
  }
};

struct LanesDriver {
  template <class Formula, int N>
  static int64_t Run(const FormulaArguments& arguments) {
    const int64_t step = hwy::HWY_NAMESPACE::Lanes(Lanes::Tag());
    const Constants<Lanes> constants(arguments.coefficients);
    int64_t i = 0;
    for (; i + step <= arguments.elements; i += step) {
      Lanes parameter = Lanes::Load(arguments.parameter + i);
      Slots<Lanes, N> slots;
      for (int k = 0; k < N; ++k) slots[k] = Lanes::Load(arguments.slots[k] + i);
      Formula::template Apply<Lanes, N>(constants, Lanes::Load(arguments.gradient + i), parameter,
                                        slots);
      for (int k = 0; k < N; ++k) slots[k].Store(arguments.slots[k] + i);
      parameter.Store(arguments.parameter + i);
    }
    return i;
  }
};

template <int... kSlotCounts>
HWY_INLINE bool IsOneOf(VariantsBySlots<kSlotCounts...>, int slot_count) {
  return ((slot_count == kSlotCounts) || ...);
}

template <class Formula>
bool HasVariant(int slot_count) {
  return IsOneOf(typename Formula::Variants(), slot_count);
}

template <class Driver, class Formula, int... kSlotCounts>
HWY_INLINE int64_t RunVariant(VariantsBySlots<kSlotCounts...>, const FormulaArguments& arguments) {
  int64_t done = 0;
  (void)((arguments.slot_count == kSlotCounts &&
          (done = Driver::template Run<Formula, kSlotCounts>(arguments), true)) ||
         ...);
  return done;
}

// Returns how many elements are done: all, or as many whole vectors as there are.
template <class Driver, class Formula>
int64_t UpdateWith(const FormulaArguments& arguments) {
  return RunVariant<Driver, Formula>(typename Formula::Variants(), arguments);
}

}  // namespace HWY_NAMESPACE
}  // namespace optshard
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
