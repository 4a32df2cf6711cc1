// What a rule's file includes first. It compiles the file's formulas once for every instruction set
// and gives the rest of the file, the declaration, the FormulaDrivers of each:
//
//   #include "server/update/define_rule-inl.h"
//
//   OPTSHARD_BEGIN_FORMULA();
//   struct Sgd {                                      // docs/numerics.md: what it may use
//     enum Slot { kMomentumBuffer };                  // as in RuleSpec::slots
//     using Variants = VariantsBySlots<0, SlotSetOf(kMomentumBuffer)>;
//     template <class E, class Slots>
//     static OPTSHARD_FORMULA void Apply(const Constants<E>& c, E gradient, E& parameter,
//                                        Slots& slots) { ... }
//   };
//   OPTSHARD_END_FORMULA(Sgd);
//
//   #if OPTSHARD_DECLARE_RULE
//   namespace optshard { namespace {
//   class SgdRule : public ElementWiseRule {
//    public:
//     SgdRule() : ElementWiseRule(SgdSpec(), DriversOf<Sgd>()) {}
//     ...
//   };
//   OPTSHARD_REGISTER_RULE(SgdRule);
//   }}
//   #endif
//
// No include guard: the file is compiled several times over within one translation unit, each time
// with another HWY_TARGET, the last time with the baseline, where OPTSHARD_DECLARE_RULE is 1. The
// rule's kernels are the same file once more, without its declaration
// (server/update/cuda/define_kernels-inl.h).

#ifdef OPTSHARD_KERNELS
#include "server/update/cuda/define_kernels-inl.h"
#else

#include "common/simd/scalar.h"
#include "server/update/element_wise_rule.h"
#include "server/update/option_spec.h"
#include "server/update/update_rule.h"

// The rule's file itself, whatever it is called.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE __BASE_FILE__
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "common/simd/lanes-inl.h"
#include "hwy/highway.h"
#include "server/update/drivers-inl.h"
#include "server/update/formula-inl.h"

#undef OPTSHARD_BEGIN_FORMULA
#define OPTSHARD_BEGIN_FORMULA() \
  HWY_BEFORE_NAMESPACE();        \
  namespace optshard {           \
  namespace HWY_NAMESPACE {      \
  namespace {                    \
  static_assert(true, "a semicolon follows")

#undef OPTSHARD_END_FORMULA
#define OPTSHARD_END_FORMULA(Formula)                                   \
  int64_t Formula##Lanes(const FormulaArguments<float>& arguments) {    \
    return UpdateWith<Lanes, Formula>(arguments);                       \
  }                                                                     \
  int64_t Formula##Lanes64(const FormulaArguments<double>& arguments) { \
    return UpdateWith<Lanes64, Formula>(arguments);                     \
  }                                                                     \
  } /* namespace */                                                     \
  } /* namespace HWY_NAMESPACE */                                       \
  } /* namespace optshard */                                            \
  HWY_AFTER_NAMESPACE();                                                \
  OPTSHARD_DISPATCH_FORMULA(Formula)                                    \
  static_assert(true, "a semicolon follows")

#undef OPTSHARD_DECLARE_RULE
#undef OPTSHARD_DISPATCH_FORMULA
#if HWY_ONCE
#define OPTSHARD_DECLARE_RULE 1
namespace optshard {
namespace {
// Of one of the file's formulas.
template <class Formula>
FormulaDrivers DriversOf();
}  // namespace
}  // namespace optshard
#define OPTSHARD_DISPATCH_FORMULA(Formula)                                  \
  namespace optshard {                                                      \
  namespace {                                                               \
  using HWY_NAMESPACE::Formula;                                             \
  HWY_EXPORT(Formula##Lanes);                                               \
  HWY_EXPORT(Formula##Lanes64);                                             \
  template <>                                                               \
  FormulaDrivers DriversOf<Formula>() {                                     \
    FormulaDrivers drivers;                                                 \
    drivers.formula = #Formula;                                             \
    drivers.has_variant = &HWY_NAMESPACE::HasVariant<Formula>;              \
    drivers.float32.scalar = &HWY_NAMESPACE::UpdateWith<Scalar, Formula>;   \
    drivers.float64.scalar = &HWY_NAMESPACE::UpdateWith<Scalar64, Formula>; \
    drivers.float32.simd = [](const FormulaArguments<float>& arguments) {   \
      return HWY_DYNAMIC_DISPATCH(Formula##Lanes)(arguments);               \
    };                                                                      \
    drivers.float64.simd = [](const FormulaArguments<double>& arguments) {  \
      return HWY_DYNAMIC_DISPATCH(Formula##Lanes64)(arguments);             \
    };                                                                      \
    return drivers;                                                         \
  }                                                                         \
  } /* namespace */                                                         \
  } /* namespace optshard */
   // Rules live as long as the process. BUILD: alwayslink, since nothing else refers to the file.
#define OPTSHARD_REGISTER_RULE(Rule) \
  const bool registered_##Rule [[maybe_unused]] = RuleRegistry::Register(new Rule)
#else
#define OPTSHARD_DECLARE_RULE 0
#define OPTSHARD_DISPATCH_FORMULA(Formula)
#endif
#endif  // OPTSHARD_KERNELS
