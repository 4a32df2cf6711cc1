// A few elements of an array that lie beside each other, widened and rounded: for kernels.
#ifndef OPTSHARD_SERVER_UPDATE_CUDA_ELEMENT_ARRAYS_H_
#define OPTSHARD_SERVER_UPDATE_CUDA_ELEMENT_ARRAYS_H_

#include <cstdint>

#include "common/half.h"
#include "common/host_device.h"
#include "server/update/cuda/kernel_arguments.h"

namespace optshard {
namespace kernels {

// Loaded and stored by 128 bits, or by as many as it has.
template <typename T, int kCount>
struct alignas(sizeof(T) * kCount < 16 ? sizeof(T) * kCount : 16) Pack {
  T values[kCount];
};

// Pointers that come out of memory could be to anywhere, and are then slower to load from.
OPTSHARD_HOST_DEVICE inline void AssumeGlobal([[maybe_unused]] const void* array) {
#ifdef __CUDA_ARCH__
  __builtin_assume(__isGlobal(array));
#endif
}

// Where a thread's elements of an array lie: in kGroups groups, each of kTogether beside each
// other, kGroupStride from one to the next. So the threads of a warp access memory without gaps.
template <int kGroupCount, int kGroupElements>
struct Place {
  static constexpr int kGroups = kGroupCount;
  static constexpr int kTogether = kGroupElements;
  static constexpr int kCount = kGroups * kTogether;
  static constexpr int kGroupStride = 32 * kTogether;

  int64_t first = 0;      // of the first group
  int64_t left = 0;       // elements of the span from there on; none of the thread's exist if < 1
  bool is_whole = false;  // all exist, and lie where packs of them may

  OPTSHARD_HOST_DEVICE bool is_empty() const { return left <= 0; }
  OPTSHARD_HOST_DEVICE bool Has(int group, int k) const { return group * kGroupStride + k < left; }
  OPTSHARD_HOST_DEVICE int64_t FirstOf(int group) const { return first + group * kGroupStride; }
};

template <typename T, class Place>
OPTSHARD_HOST_DEVICE inline void LoadPlain(const void* array, const Place& place, T* to) {
  AssumeGlobal(array);
  OPTSHARD_UNROLL
  for (int group = 0; group < Place::kGroups; ++group) {
    const T* const from = static_cast<const T*>(array) + place.FirstOf(group);
    T* const values = to + group * Place::kTogether;
    if (place.is_whole) {
      const auto pack = *reinterpret_cast<const Pack<T, Place::kTogether>*>(from);
      OPTSHARD_UNROLL
      for (int k = 0; k < Place::kTogether; ++k) values[k] = pack.values[k];
    } else {
      OPTSHARD_UNROLL
      for (int k = 0; k < Place::kTogether; ++k) values[k] = place.Has(group, k) ? from[k] : T{};
    }
  }
}

template <typename T, class Place>
OPTSHARD_HOST_DEVICE inline void StorePlain(const T* from, void* array, const Place& place) {
  AssumeGlobal(array);
  OPTSHARD_UNROLL
  for (int group = 0; group < Place::kGroups; ++group) {
    T* const to = static_cast<T*>(array) + place.FirstOf(group);
    const T* const values = from + group * Place::kTogether;
    if (place.is_whole) {
      Pack<T, Place::kTogether> pack;
      OPTSHARD_UNROLL
      for (int k = 0; k < Place::kTogether; ++k) pack.values[k] = values[k];
      *reinterpret_cast<Pack<T, Place::kTogether>*>(to) = pack;
    } else {
      OPTSHARD_UNROLL
      for (int k = 0; k < Place::kTogether; ++k) {
        if (place.Has(group, k)) to[k] = values[k];
      }
    }
  }
}

// Of 16-bit numbers. A GPU's own instructions for two at a time make another NaN than
// common/half.h, but for any NaN.
OPTSHARD_HOST_DEVICE inline void WidenFloat16(const uint16_t* halves, float* to) {
#ifdef __CUDA_ARCH__
  asm("cvt.f32.f16 %0, %1;" : "=f"(to[0]) : "h"(halves[0]));
  asm("cvt.f32.f16 %0, %1;" : "=f"(to[1]) : "h"(halves[1]));
#else
  for (int k = 0; k < 2; ++k) to[k] = FromFloat16(halves[k]);
#endif
}
OPTSHARD_HOST_DEVICE inline void NarrowBFloat16(const float* from, uint16_t* halves) {
#ifdef __CUDA_ARCH__
  uint32_t both;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(from[1]), "f"(from[0]));
  halves[0] = static_cast<uint16_t>(both);
  halves[1] = static_cast<uint16_t>(both >> 16);
#else
  for (int k = 0; k < 2; ++k) halves[k] = ToBFloat16(from[k]);
#endif
}
OPTSHARD_HOST_DEVICE inline void NarrowFloat16(const float* from, uint16_t* halves) {
#ifdef __CUDA_ARCH__
  uint32_t both;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(from[1]), "f"(from[0]));
  halves[0] = static_cast<uint16_t>(both);
  halves[1] = static_cast<uint16_t>(both >> 16);
#else
  for (int k = 0; k < 2; ++k) halves[k] = ToFloat16(from[k]);
#endif
}

template <int kCount>
OPTSHARD_HOST_DEVICE inline void Widen(ArrayKind kind, const uint16_t* halves, float* to) {
  if (kind == ArrayKind::kBFloat16) {
    OPTSHARD_UNROLL
    for (int k = 0; k < kCount; ++k) to[k] = FromBFloat16(halves[k]);
  } else {
    OPTSHARD_UNROLL
    for (int k = 0; k < kCount; k += 2) WidenFloat16(halves + k, to + k);
  }
}
template <int kCount>
OPTSHARD_HOST_DEVICE inline void Narrow(ArrayKind kind, const float* from, uint16_t* halves) {
  if (kind == ArrayKind::kBFloat16) {
    OPTSHARD_UNROLL
    for (int k = 0; k < kCount; k += 2) NarrowBFloat16(from + k, halves + k);
  } else {
    OPTSHARD_UNROLL
    for (int k = 0; k < kCount; k += 2) NarrowFloat16(from + k, halves + k);
  }
}

// Of an array that is not coded.
template <class Place>
OPTSHARD_HOST_DEVICE inline void LoadWidened(const KernelArray& array, const Place& place,
                                             float* to) {
  if (array.kind == ArrayKind::kFloat32) {
    LoadPlain<float>(array.values, place, to);
    return;
  }
  uint16_t halves[Place::kCount];
  LoadPlain<uint16_t>(array.values, place, halves);
  Widen<Place::kCount>(array.kind, halves, to);
}

template <class Place>
OPTSHARD_HOST_DEVICE inline void StoreNarrowed(const float* from, const KernelArray& array,
                                               const Place& place) {
  if (array.kind == ArrayKind::kFloat32) {
    StorePlain<float>(from, array.values, place);
    return;
  }
  uint16_t halves[Place::kCount];
  Narrow<Place::kCount>(array.kind, from, halves);
  StorePlain<uint16_t>(halves, array.values, place);
}

}  // namespace kernels
}  // namespace optshard

#endif  // OPTSHARD_SERVER_UPDATE_CUDA_ELEMENT_ARRAYS_H_
