// What the threads of an element-wise rule's kernel do, in phases between barriers. A phase is a
// function of thread, block and grid; so a host can run a whole grid, phase by phase
// (grid_on_host.h), and a test compares it with the CPU's drivers, bit by bit.
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
  // The last span with no more chunks before it. Spans without elements have none, and precede.
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

// The elements of `unit` of a chunk that are this thread's.
template <int kCount>
OPTSHARD_HOST_DEVICE inline Place PlaceOf(const KernelSpan& span, int64_t chunk_first, int unit,
                                          int thread) {
  Place place;
  place.first = chunk_first + (int64_t{unit} * kKernelThreads + thread) * kCount;
  const int64_t left = span.elements - place.first;
  place.valid = static_cast<int>(left < 0 ? 0 : left < kCount ? left : kCount);
  place.is_whole = place.valid == kCount && span.is_aligned;
  return place;
}

// Every array of T.
template <class Formula, typename T, SlotSet kSlots>
struct PlainBody {
  static constexpr int kCount = VectorElements<T>(KernelPass::kPlain);
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
        Update(constants, span, PlaceOf<kCount>(span, at.first, unit, grid.thread));
      }
    }
  }

 private:
  static OPTSHARD_HOST_DEVICE void Update(const Constants<Element>& constants,
                                          const KernelSpan& span, const Place& place) {
    if (place.valid == 0) return;
    T parameter[kCount];
    T gradient[kCount];
    T slots[SlotsOf::kCount > 0 ? SlotsOf::kCount : 1][kCount];
    LoadPlain<T, kCount>(span.updated.values, place, parameter);
    LoadPlain<T, kCount>(span.gradient.values, place, gradient);
    OPTSHARD_UNROLL
    for (int s = 0; s < SlotsOf::kCount; ++s) {
      LoadPlain<T, kCount>(span.slots[s].values, place, slots[s]);
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
      StorePlain<T, kCount>(slots[s], span.slots[s].values, place);
    }
    if (!span.keeps_parameter) StorePlain<T, kCount>(parameter, span.updated.values, place);
  }
};

// Arrays of several types, whose formula computes in float32: slots in block codes, too, if kCoded.
// A thread carries its new slots over a barrier, until the scales of their blocks are known.
template <class Formula, SlotSet kSlots, bool kCoded>
struct MixedBody {
  static constexpr KernelPass kPass = kCoded ? KernelPass::kCoded : KernelPass::kMixed;
  static constexpr int kCount = VectorElements<float>(kPass);
  using SlotsOf = Slots<Scalar, kSlots>;
  static constexpr int kSlotCount = SlotsOf::kCount > 0 ? SlotsOf::kCount : 1;

  // Of a block of threads. Two units' largest values: a thread writes the next unit's while others
  // still read this one's.
  struct Shared {
    DynamicTable tables[2];
    uint32_t largest[2][kSlotCount][kKernelThreads];
  };
  // Of a thread.
  struct Carried {
    float slots[kSlotCount][kCount];
    Place place;
    const KernelSpan* span;
  };

  // The number of units that each of the block's threads goes through.
  static OPTSHARD_HOST_DEVICE int64_t UnitsOf(const KernelArguments<float>& arguments,
                                              const GridPlace& grid) {
    if (IsSkipped(arguments) || grid.block >= arguments.chunks) return 0;
    return ((arguments.chunks - 1 - grid.block) / grid.blocks + 1) * kUnitsPerChunk;
  }

  // The first phase: the tables are copied to where they are near.
  static OPTSHARD_HOST_DEVICE void Begin(const KernelArguments<float>& arguments,
                                         const GridPlace& grid, Shared& shared) {
    if constexpr (kCoded) {
      constexpr int kWords = 2 * sizeof(DynamicTable) / sizeof(uint32_t);
      auto* const to = reinterpret_cast<uint32_t*>(shared.tables);
      const auto* const from = reinterpret_cast<const uint32_t*>(arguments.tables);
      for (int k = grid.thread; k < kWords; k += kKernelThreads) to[k] = from[k];
    }
  }

  // The second phase of every unit; if kCoded, the third one is Encode.
  static OPTSHARD_HOST_DEVICE void Update(const KernelArguments<float>& arguments,
                                          const GridPlace& grid, int64_t unit, Shared& shared,
                                          Carried& carried) {
    const int64_t chunk = grid.block + unit / kUnitsPerChunk * grid.blocks;
    const ChunkPlace at = FindChunk(arguments, chunk, ChunkElements<float>(kPass));
    carried.span = at.span;
    const KernelSpan& span = *at.span;
    carried.place =
        PlaceOf<kCount>(span, at.first, static_cast<int>(unit % kUnitsPerChunk), grid.thread);
    const Place& place = carried.place;
    if (place.valid > 0) {
      const Constants<Scalar> constants(CoefficientsOf(arguments, span));
      UpdateElements(constants, span, place, shared, carried);
    }
    if constexpr (kCoded) {
      OPTSHARD_UNROLL
      for (int s = 0; s < SlotsOf::kCount; ++s) {
        uint32_t largest = 0;
        OPTSHARD_UNROLL
        for (int k = 0; k < kCount; ++k) {
          const uint32_t bits = k < place.valid ? MagnitudeBits(carried.slots[s][k]) : 0;
          largest = bits > largest ? bits : largest;
        }
        shared.largest[unit % 2][s][grid.thread] = largest;
      }
    }
  }

  static OPTSHARD_HOST_DEVICE void Encode(const GridPlace& grid, int64_t unit, Shared& shared,
                                          const Carried& carried) {
    if (carried.place.valid == 0) return;
    OPTSHARD_UNROLL
    for (int s = 0; s < SlotsOf::kCount; ++s) {
      const KernelArray& array = carried.span->slots[s];
      if (IsCoded(array.kind)) {
        EncodeElements(grid.thread, array, shared.largest[unit % 2][s], carried.place,
                       carried.slots[s], shared.tables);
      }
    }
  }

 private:
  static OPTSHARD_HOST_DEVICE void UpdateElements(const Constants<Scalar>& constants,
                                                  const KernelSpan& span, const Place& place,
                                                  const Shared& shared, Carried& carried) {
    float parameter[kCount];
    float gradient[kCount];
    LoadParameter(span, place, parameter);
    LoadWidened<kCount>(span.gradient, place, gradient);
    OPTSHARD_UNROLL
    for (int s = 0; s < SlotsOf::kCount; ++s) {
      LoadSlot(span.slots[s], place, shared, carried.slots[s]);
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
    OPTSHARD_UNROLL
    for (int s = 0; s < SlotsOf::kCount; ++s) {
      if (!kCoded || !IsCoded(span.slots[s].kind)) {
        StoreNarrowed<kCount>(carried.slots[s], span.slots[s], place);
      }
    }
    if (!span.keeps_parameter) StoreParameter(span, place, parameter);
  }

  static OPTSHARD_HOST_DEVICE void LoadSlot(const KernelArray& array, const Place& place,
                                            const Shared& shared, float* to) {
    if constexpr (kCoded) {
      if (IsCoded(array.kind)) {
        uint8_t codes[kCount];
        LoadPlain<uint8_t, kCount>(array.values, place, codes);
        // A thread's elements are of one block.
        const float scale = LoadScale(array, place.first / BlockElementsOf(array.kind));
        OPTSHARD_UNROLL
        for (int k = 0; k < kCount; ++k) to[k] = Decode(array.kind, shared.tables, codes[k], scale);
        return;
      }
    }
    LoadWidened<kCount>(array, place, to);
  }

  static OPTSHARD_HOST_DEVICE void EncodeElements(int thread, const KernelArray& array,
                                                  const uint32_t* largest_of_threads,
                                                  const Place& place, const float* values,
                                                  const DynamicTable* tables) {
    const int block_threads = BlockElementsOf(array.kind) / kCount;
    const int first_thread = thread / block_threads * block_threads;
    uint32_t largest = 0;
    for (int k = 0; k < block_threads; k += 4) {
      const auto four =
          *reinterpret_cast<const Pack<uint32_t, 4>*>(largest_of_threads + first_thread + k);
      OPTSHARD_UNROLL
      for (const uint32_t bits : four.values) largest = bits > largest ? bits : largest;
    }
    const float scale = ScaleOf(array.kind, largest);
    if (thread == first_thread) {
      StoreScale(array, place.first / BlockElementsOf(array.kind), scale);
    }
    uint8_t codes[kCount];
    if (largest == 0 || largest >= kInfinityBits) {
      OPTSHARD_UNROLL
      for (int k = 0; k < kCount; ++k) codes[k] = CodeOfZero(array.kind, tables);
    } else {
      OPTSHARD_UNROLL
      for (int k = 0; k < kCount; ++k) {
        codes[k] = kernels::Encode(array.kind, tables, values[k], scale);
      }
    }
    StorePlain<uint8_t, kCount>(codes, array.values, place);
  }

  static OPTSHARD_HOST_DEVICE void LoadParameter(const KernelSpan& span, const Place& place,
                                                 float* to) {
    LoadWidened<kCount>(span.updated, place, to);
    if (span.corrections == nullptr) return;
    int8_t corrections[kCount];
    LoadPlain<int8_t, kCount>(span.corrections, place, corrections);
    OPTSHARD_UNROLL
    for (int k = 0; k < kCount; ++k) to[k] = CorrectedBy(span.updated.kind, to[k], corrections[k]);
  }

  static OPTSHARD_HOST_DEVICE void StoreParameter(const KernelSpan& span, const Place& place,
                                                  const float* parameter) {
    StoreNarrowed<kCount>(parameter, span.updated, place);
    if (span.corrections != nullptr) {
      int8_t corrections[kCount];
      OPTSHARD_UNROLL
      for (int k = 0; k < kCount; ++k) {
        const float rounded = Widen(span.updated.kind, Narrow(span.updated.kind, parameter[k]));
        corrections[k] = CorrectionOf(span.updated.kind, parameter[k], rounded);
      }
      StorePlain<int8_t, kCount>(corrections, span.corrections, place);
    }
    if (span.parameter.kind == ArrayKind::kNone) return;
    float rounded[kCount];
    OPTSHARD_UNROLL
    for (int k = 0; k < kCount; ++k) {
      rounded[k] = Widen(span.rounded_to, Narrow(span.rounded_to, parameter[k]));
    }
    StoreNarrowed<kCount>(rounded, span.parameter, place);
  }
};

}  // namespace kernels
}  // namespace optshard

#endif  // OPTSHARD_SERVER_UPDATE_CUDA_ELEMENT_WISE_BODY_H_
