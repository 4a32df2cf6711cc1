// What the threads of an element-wise rule's kernel do, in phases, between which they wait for each
// other or tell each other something. A phase is a function of thread, block and grid; so a host
// can run a whole grid, phase by phase (grid_on_host.h), and a test compares it with the CPU's
// drivers, bit by bit.
#ifndef OPTSHARD_SERVER_UPDATE_CUDA_ELEMENT_WISE_BODY_H_
#define OPTSHARD_SERVER_UPDATE_CUDA_ELEMENT_WISE_BODY_H_

#include <cstdint>

#include "common/host_device.h"
#include "common/simd/scalar.h"
#include "server/update/cuda/element_arrays.h"
#include "server/update/cuda/element_codes.h"
#include "server/update/cuda/element_corrections.h"
#include "server/update/cuda/kernel_arguments.h"
#include "server/update/formula-inl.h"

namespace optshard {
namespace kernels {

struct GridPlace {
  int thread = 0;  // of kKernelThreads
  int64_t block = 0;
  int64_t blocks = 1;
};

// A chunk's span, and where in that it begins.
struct ChunkPlace {
  const KernelSpan* span = nullptr;
  int64_t first = 0;
};

template <typename T>
OPTSHARD_HOST_DEVICE inline ChunkPlace FindChunk(const KernelArguments<T>& arguments, int64_t chunk,
                                                 int64_t chunk_elements) {
  // The last span with no more chunks before it. Each has some.
  int32_t low = 0;
  int32_t high = arguments.span_count;
  while (high - low > 1) {
    const int32_t middle = low + (high - low) / 2;
    if (arguments.chunks_before[middle] <= chunk) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return {arguments.spans + low, (chunk - arguments.chunks_before[low]) * chunk_elements};
}

template <typename T>
OPTSHARD_HOST_DEVICE inline const T* CoefficientsOf(const KernelArguments<T>& arguments,
                                                    const KernelSpan& span) {
  return arguments.coefficients + int64_t{span.coefficients} * kMaxCoefficients;
}

template <typename T>
OPTSHARD_HOST_DEVICE inline bool IsSkipped(const KernelArguments<T>& arguments) {
  return arguments.decision != nullptr && arguments.decision->applies == 0;
}

// The places of a thread's elements, of one unit.
template <typename T, KernelPass kPass>
using PlaceIn = kernels::Place<GroupsOf(kPass), GroupElements<T>(kPass)>;

template <class Place>
OPTSHARD_HOST_DEVICE inline Place PlaceOf(const KernelSpan& span, int64_t chunk_first, int unit,
                                          int thread) {
  // A warp's elements follow each other.
  const int in_warp = thread % 32;
  Place place;
  place.first = chunk_first + int64_t{unit} * kKernelThreads * Place::kCount +
                (thread - in_warp) * Place::kCount + in_warp * Place::kTogether;
  place.left = span.elements - place.first;
  place.is_whole = span.is_aligned && place.Has(Place::kGroups - 1, Place::kTogether - 1);
  return place;
}

// Every array of T.
template <class Formula, typename T, SlotSet kSlots>
struct PlainBody {
  using Place = PlaceIn<T, KernelPass::kPlain>;
  static constexpr int kCount = Place::kCount;
  using Element = ScalarOf<T>;
  using SlotsOf = Slots<Element, kSlots>;

  // The only phase.
  static OPTSHARD_HOST_DEVICE void Run(const KernelArguments<T>& arguments, const GridPlace& grid) {
    if (IsSkipped(arguments)) return;
    constexpr int64_t kChunk = ChunkElements<T>(KernelPass::kPlain);
    for (int64_t chunk = grid.block; chunk < arguments.chunks; chunk += grid.blocks) {
      const ChunkPlace at = FindChunk(arguments, chunk, kChunk);
      const KernelSpan span = *at.span;
      const Constants<Element> constants(CoefficientsOf(arguments, span));
      for (int unit = 0; unit < kUnitsPerChunk; ++unit) {
        Update(constants, span, PlaceOf<Place>(span, at.first, unit, grid.thread));
      }
    }
  }

 private:
  static OPTSHARD_HOST_DEVICE void Update(const Constants<Element>& constants,
                                          const KernelSpan& span, const Place& place) {
    if (place.is_empty()) return;
    T parameter[kCount];
    T gradient[kCount];
    T slots[SlotsOf::kCount > 0 ? SlotsOf::kCount : 1][kCount];
    LoadPlain<T>(span.updated.values, place, parameter);
    LoadPlain<T>(span.gradient.values, place, gradient);
    OPTSHARD_UNROLL
    for (int s = 0; s < SlotsOf::kCount; ++s) {
      LoadPlain<T>(span.slots[s].values, place, slots[s]);
    }
    OPTSHARD_UNROLL
    for (int k = 0; k < kCount; ++k) {
      Element of_parameter(parameter[k]);
      SlotsOf of_slots;
      OPTSHARD_UNROLL
      for (int s = 0; s < SlotsOf::kCount; ++s) of_slots.existing(s) = Element(slots[s][k]);
      Formula::Apply(constants, Element(gradient[k]), of_parameter, of_slots);
      OPTSHARD_UNROLL
      for (int s = 0; s < SlotsOf::kCount; ++s) slots[s][k] = of_slots.existing(s).raw;
      parameter[k] = of_parameter.raw;
    }
    OPTSHARD_UNROLL
    for (int s = 0; s < SlotsOf::kCount; ++s) {
      StorePlain<T>(slots[s], span.slots[s].values, place);
    }
    if (!span.keeps_parameter) StorePlain<T>(parameter, span.updated.values, place);
  }
};

// Which kinds of arrays a pass has, as far as they are known when its kernel is compiled.
template <KernelPass kPass>
struct KindsOf {
  static constexpr bool kAllBFloat16 = kPass == KernelPass::kBFloat16;
  static constexpr bool kWithMaster = kPass == KernelPass::kMaster;
  static constexpr bool kFloat32 = kWithMaster || kPass == KernelPass::kCodedFloat32;

  static constexpr ArrayKind kUpdated = kAllBFloat16 ? ArrayKind::kBFloat16
                                        : kFloat32   ? ArrayKind::kFloat32
                                                     : kAnyKind;
  static constexpr ArrayKind kGradient = kAllBFloat16 || kWithMaster ? ArrayKind::kBFloat16
                                         : kFloat32                  ? ArrayKind::kFloat32
                                                                     : kAnyKind;
  static constexpr ArrayKind kSlots = kAllBFloat16  ? ArrayKind::kBFloat16
                                      : kWithMaster ? ArrayKind::kFloat32
                                                    : kAnyKind;
  static constexpr bool kOnlyCodedSlots = kPass == KernelPass::kCodedFloat32;
  static constexpr bool kMayHaveMaster = kUpdated == kAnyKind || kWithMaster;
  static constexpr bool kMayHaveCorrections = kUpdated == kAnyKind;
};

// Arrays of several types, whose formula computes in float32; slots in block codes, too. Those are
// stored once the largest values of their blocks are known, for which the threads of a block of
// codes tell each other theirs.
template <class Formula, SlotSet kSlots, KernelPass kPass>
struct MixedBody {
  using Kinds = KindsOf<kPass>;
  using Place = PlaceIn<float, kPass>;
  static constexpr bool kCoded = HasCodes(kPass);
  static constexpr int kCount = Place::kCount;
  using SlotsOf = Slots<Scalar, kSlots>;
  static constexpr int kSlotCount = SlotsOf::kCount > 0 ? SlotsOf::kCount : 1;

  // A thread's new slots, from one phase to the next.
  struct Carried {
    float slots[kSlotCount][kCount];
  };

  static OPTSHARD_HOST_DEVICE bool IsCodedSlot(const KernelArray& array) {
    return kCoded && (Kinds::kOnlyCodedSlots || IsCoded(array.kind));
  }

  // The first phase: the tables are copied to where they are near.
  static OPTSHARD_HOST_DEVICE void Begin(const CodeTable* from, int thread, CodeTable* to) {
    constexpr int kWords = kCodeTables * sizeof(CodeTable) / sizeof(uint32_t);
    for (int k = thread; k < kWords; k += kKernelThreads) {
      reinterpret_cast<uint32_t*>(to)[k] = reinterpret_cast<const uint32_t*>(from)[k];
    }
  }

  // Of each unit, the second phase; without codes the last one.
  static OPTSHARD_HOST_DEVICE void Update(const Constants<Scalar>& constants,
                                          const KernelSpan& span, const Place& place,
                                          const CodeTable* tables, Carried& carried) {
    if (place.is_empty()) return;
    Loaded loaded;
    if (place.is_whole) {
      Load<true>(span, place, loaded);
    } else {
      Load<false>(span, place, loaded);
    }
    float parameter[kCount];
    float gradient[kCount];
    Widened<Kinds::kUpdated, kCount>(span.updated, loaded.parameter, parameter);
    if constexpr (Kinds::kMayHaveCorrections) Correct(span, loaded, parameter);
    Widened<Kinds::kGradient, kCount>(span.gradient, loaded.gradient, gradient);
    OPTSHARD_UNROLL
    for (int s = 0; s < SlotsOf::kCount; ++s) {
      WidenSlot(span.slots[s], tables, loaded.slots[s], loaded.scales[s], carried.slots[s]);
    }
    OPTSHARD_UNROLL
    for (int k = 0; k < kCount; ++k) {
      Scalar of_parameter(parameter[k]);
      SlotsOf of_slots;
      OPTSHARD_UNROLL
      for (int s = 0; s < SlotsOf::kCount; ++s) of_slots.existing(s) = Scalar(carried.slots[s][k]);
      Formula::Apply(constants, Scalar(gradient[k]), of_parameter, of_slots);
      OPTSHARD_UNROLL
      for (int s = 0; s < SlotsOf::kCount; ++s) carried.slots[s][k] = of_slots.existing(s).raw;
      parameter[k] = of_parameter.raw;
    }
    if (place.is_whole) {
      Store<true>(span, place, parameter, carried);
    } else {
      Store<false>(span, place, parameter, carried);
    }
  }

  // The bits of the largest absolute value of a group in slot s: those of a NaN are above all
  // others.
  static OPTSHARD_HOST_DEVICE uint32_t LargestOf(const Place& place, const Carried& carried, int s,
                                                 int group) {
    uint32_t largest = 0;
    OPTSHARD_UNROLL
    for (int k = 0; k < Place::kTogether; ++k) {
      const float value = carried.slots[s][group * Place::kTogether + k];
      const bool exists = place.is_whole || place.Has(group, k);
      const uint32_t bits = exists ? MagnitudeBits(value) : 0;
      largest = bits > largest ? bits : largest;
    }
    return largest;
  }

  // How many threads share a block of codes: a warp, with all of their groups, or as many with one
  // group each.
  static OPTSHARD_HOST_DEVICE int ThreadsOfBlock(ArrayKind kind) {
    return IsDynamic(kind) ? 32 : 32 / Place::kTogether;
  }
  static_assert(!kCoded || Place::kCount * 32 == 256, "a warp has a whole block");

  // The last phase, of each coded slot s. `largest`: of each group's block of codes.
  static OPTSHARD_HOST_DEVICE void Encode(const KernelArray& array, const Place& place,
                                          const CodeTable* tables, const Carried& carried, int s,
                                          const uint32_t* largest) {
    if (place.is_empty()) return;
    float scales[Place::kGroups];
    OPTSHARD_UNROLL
    for (int group = 0; group < Place::kGroups; ++group) {
      scales[group] = ScaleOf(array.kind, largest[group]);
      const int64_t first = place.FirstOf(group);
      const int64_t block = first >> BlockShift(array.kind);
      if (block << BlockShift(array.kind) == first && place.Has(group, 0)) {
        StoreScale(array, block, scales[group]);
      }
    }
    uint32_t words[Place::kGroups];
    kernels::Encode<Place::kGroups>(array.kind, tables, carried.slots[s], largest, scales, words);
    if (place.is_whole) {
      StoreWords<1, true>(words, array.values, place);
    } else {
      StoreWords<1, false>(words, array.values, place);
    }
  }
  static_assert(Place::kTogether == 4, "a word has a group's codes");

 private:
  // As it lies in memory.
  struct Loaded {
    uint32_t parameter[kCount];
    uint32_t gradient[kCount];
    uint32_t corrections[Place::kGroups];
    uint32_t slots[kSlotCount][kCount];
    float scales[kSlotCount][Place::kGroups];
  };

  template <bool kWhole>
  static OPTSHARD_HOST_DEVICE void Load(const KernelSpan& span, const Place& place,
                                        Loaded& loaded) {
    LoadAs<Kinds::kUpdated, kWhole>(span.updated, place, loaded.parameter);
    LoadAs<Kinds::kGradient, kWhole>(span.gradient, place, loaded.gradient);
    if (Kinds::kMayHaveCorrections && span.corrections != nullptr) {
      LoadWords<1, kWhole>(span.corrections, place, loaded.corrections);
    }
    OPTSHARD_UNROLL
    for (int s = 0; s < SlotsOf::kCount; ++s) {
      const KernelArray& array = span.slots[s];
      if (!IsCodedSlot(array)) {
        LoadAs<Kinds::kSlots, kWhole>(array, place, loaded.slots[s]);
        continue;
      }
      LoadWords<1, kWhole>(array.values, place, loaded.slots[s]);
      OPTSHARD_UNROLL
      for (int group = 0; group < Place::kGroups; ++group) {
        const int64_t block = place.FirstOf(group) >> BlockShift(array.kind);
        const bool exists = kWhole || place.Has(group, 0);
        loaded.scales[s][group] = exists ? LoadScale(array, block) : 0.0f;
      }
    }
  }

  static OPTSHARD_HOST_DEVICE void WidenSlot(const KernelArray& array, const CodeTable* tables,
                                             const uint32_t* words, const float* scales,
                                             float* to) {
    if (!IsCodedSlot(array)) {
      Widened<Kinds::kSlots, kCount>(array, words, to);
      return;
    }
    Decode<Place::kGroups>(array.kind, tables, words, scales, to);
  }

  static OPTSHARD_HOST_DEVICE void Correct(const KernelSpan& span, const Loaded& loaded,
                                           float* parameter) {
    if (span.corrections == nullptr) return;
    OPTSHARD_UNROLL
    for (int k = 0; k < kCount; ++k) {
      const auto correction = static_cast<int8_t>(CodeIn(loaded.corrections, k));
      parameter[k] = CorrectedBy(span.updated.kind, parameter[k], correction);
    }
  }

  template <bool kWhole>
  static OPTSHARD_HOST_DEVICE void Store(const KernelSpan& span, const Place& place,
                                         const float* parameter, const Carried& carried) {
    OPTSHARD_UNROLL
    for (int s = 0; s < SlotsOf::kCount; ++s) {
      if (!IsCodedSlot(span.slots[s])) {
        StoreAs<Kinds::kSlots, kWhole>(carried.slots[s], span.slots[s], place);
      }
    }
    if (!span.keeps_parameter) StoreParameter<kWhole>(span, place, parameter);
  }

  template <bool kWhole>
  static OPTSHARD_HOST_DEVICE void StoreParameter(const KernelSpan& span, const Place& place,
                                                  const float* parameter) {
    StoreAs<Kinds::kUpdated, kWhole>(parameter, span.updated, place);
    if constexpr (Kinds::kMayHaveCorrections) {
      if (span.corrections != nullptr) StoreCorrections<kWhole>(span, place, parameter);
    }
    if constexpr (Kinds::kMayHaveMaster) {
      if (Kinds::kWithMaster) {
        StoreAs<ArrayKind::kBFloat16, kWhole>(parameter, span.parameter, place);
      } else if (span.parameter.kind == ArrayKind::kFloat32) {
        float rounded[kCount];
        Round(span.rounded_to, parameter, rounded);
        StoreAs<ArrayKind::kFloat32, kWhole>(rounded, span.parameter, place);
      } else if (span.parameter.kind != ArrayKind::kNone) {
        StoreAs<kAnyKind, kWhole>(parameter, span.parameter, place);
      }
    }
  }

  template <bool kWhole>
  static OPTSHARD_HOST_DEVICE void StoreCorrections(const KernelSpan& span, const Place& place,
                                                    const float* parameter) {
    float rounded[kCount];
    Round(span.updated.kind, parameter, rounded);
    uint32_t words[Place::kGroups] = {};
    OPTSHARD_UNROLL
    for (int k = 0; k < kCount; ++k) {
      const int8_t correction = CorrectionOf(span.updated.kind, parameter[k], rounded[k]);
      words[k / 4] |= uint32_t{static_cast<uint8_t>(correction)} << (8 * (k % 4));
    }
    StoreWords<1, kWhole>(words, span.corrections, place);
  }

  // To values of a 16-bit type.
  static OPTSHARD_HOST_DEVICE void Round(ArrayKind half, const float* from, float* to) {
    uint32_t words[kCount / 2];
    NarrowToWords<kCount>(half, from, words);
    WidenWords<kCount>(half, words, to);
  }
};

}  // namespace kernels
}  // namespace optshard

#endif  // OPTSHARD_SERVER_UPDATE_CUDA_ELEMENT_WISE_BODY_H_
