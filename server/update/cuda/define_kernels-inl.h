// What define_rule-inl.h is where OPTSHARD_KERNELS is defined: it makes the kernels of the file's
// formulas, and leaves out the declarations. nvcc makes them for GPUs. A compiler for CPUs makes
// what runs the same phases of a whole grid on the host, one thread after the other, for tests.

#include "common/simd/scalar.h"
#include "server/update/cuda/element_wise_body.h"
#include "server/update/cuda/formula_kernels.h"
#include "server/update/formula-inl.h"
#ifdef __CUDACC__
#include "server/update/cuda/grid_on_device-inl.h"
#else
#include "server/update/cuda/grid_on_host.h"
#endif

namespace optshard {
namespace kernels {

// Calls use(variant) with the type that stands for the slot set, if it is one of the variants.
template <SlotSet kSlots>
struct VariantOf {
  static constexpr SlotSet kSet = kSlots;
};
template <class Use, SlotSet... kSlotSets>
int WithVariant(VariantsBySlots<kSlotSets...>, SlotSet slots, const Use& use) {
  int result = 0;
  (void)((slots == kSlotSets && (result = use(VariantOf<kSlotSets>()), true)) || ...);
  return result;
}

template <class Formula, class Use>
int WithKernel32(SlotSet slots, KernelPass pass, const Use& use) {
  return WithVariant(typename Formula::Variants(), slots, [pass, &use](auto variant) {
    constexpr SlotSet kSlots = decltype(variant)::kSet;
    switch (pass) {
      case KernelPass::kPlain:
        return use(PlainGrid<Formula, float, kSlots>());
      case KernelPass::kBFloat16:
        return use(MixedGrid<Formula, kSlots, KernelPass::kBFloat16>());
      case KernelPass::kMaster:
        return use(MixedGrid<Formula, kSlots, KernelPass::kMaster>());
      case KernelPass::kMixed:
        return use(MixedGrid<Formula, kSlots, KernelPass::kMixed>());
      case KernelPass::kCodedFloat32:
        if constexpr (kSlots != 0) {
          return use(MixedGrid<Formula, kSlots, KernelPass::kCodedFloat32>());
        }
        break;
      case KernelPass::kCoded:
        if constexpr (kSlots != 0) return use(MixedGrid<Formula, kSlots, KernelPass::kCoded>());
        break;
    }
    return 0;
  });
}

template <class Formula, class Use>
int WithKernel64(SlotSet slots, const Use& use) {
  return WithVariant(typename Formula::Variants(), slots, [&use](auto variant) {
    return use(PlainGrid<Formula, double, decltype(variant)::kSet>());
  });
}

template <class Formula>
FormulaKernels KernelsOf(const char* name) {
  FormulaKernels all;
  all.formula = name;
  all.float32.launch = [](SlotSet slots, KernelPass pass, const KernelArguments<float>& arguments,
                          const KernelGrid& grid) {
    return WithKernel32<Formula>(slots, pass,
                                 [&](auto kernel) { return kernel.Launch(arguments, grid); });
  };
  all.float32.blocks_per_multiprocessor = [](SlotSet slots, KernelPass pass) {
    return WithKernel32<Formula>(slots, pass,
                                 [](auto kernel) { return kernel.BlocksPerMultiprocessor(); });
  };
  all.float64.launch = [](SlotSet slots, KernelPass, const KernelArguments<double>& arguments,
                          const KernelGrid& grid) {
    return WithKernel64<Formula>(slots,
                                 [&](auto kernel) { return kernel.Launch(arguments, grid); });
  };
  all.float64.blocks_per_multiprocessor = [](SlotSet slots, KernelPass) {
    return WithKernel64<Formula>(slots,
                                 [](auto kernel) { return kernel.BlocksPerMultiprocessor(); });
  };
  return all;
}

}  // namespace kernels
}  // namespace optshard

#define OPTSHARD_BEGIN_FORMULA() \
  namespace optshard {           \
  namespace kernels {            \
  namespace {                    \
  static_assert(true, "a semicolon follows")

#define OPTSHARD_END_FORMULA(Formula)                                \
  const bool registered_##Formula [[maybe_unused]] =                 \
      FormulaKernelRegistry::Register(KernelsOf<Formula>(#Formula)); \
  } /* namespace */                                                  \
  } /* namespace kernels */                                          \
  } /* namespace optshard */                                         \
  static_assert(true, "a semicolon follows")

#define OPTSHARD_DECLARE_RULE 0
