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

// The thread's elements of an array are from `first` on, kCount of them; `valid` of these exist.
// All of them, and aligned: by whole packs.
struct Place {
  int64_t first = 0;
  int valid = 0;
  bool is_whole = false;
};

template <typename T, int kCount>
OPTSHARD_HOST_DEVICE inline void LoadPlain(const void* array, const Place& place, T* to) {
  OPTSHARD_IN_DEVICE_MEMORY(array);
  const T* const from = static_cast<const T*>(array) + place.first;
  if (place.is_whole) {
    const auto pack = *reinterpret_cast<const Pack<T, kCount>*>(from);
    OPTSHARD_UNROLL
    for (int k = 0; k < kCount; ++k) to[k] = pack.values[k];
    return;
  }
  OPTSHARD_UNROLL
  for (int k = 0; k < kCount; ++k) to[k] = k < place.valid ? from[k] : T{};
}

template <typename T, int kCount>
OPTSHARD_HOST_DEVICE inline void StorePlain(const T* from, void* array, const Place& place) {
  OPTSHARD_IN_DEVICE_MEMORY(array);
  T* const to = static_cast<T*>(array) + place.first;
  if (place.is_whole) {
    Pack<T, kCount> pack;
    OPTSHARD_UNROLL
    for (int k = 0; k < kCount; ++k) pack.values[k] = from[k];
    *reinterpret_cast<Pack<T, kCount>*>(to) = pack;
    return;
  }
  OPTSHARD_UNROLL
  for (int k = 0; k < kCount; ++k) {
    if (k < place.valid) to[k] = from[k];
  }
}

// A 16-bit number.
OPTSHARD_HOST_DEVICE inline float Widen(ArrayKind kind, uint16_t half) {
  return kind == ArrayKind::kBFloat16 ? FromBFloat16(half) : FromFloat16(half);
}
OPTSHARD_HOST_DEVICE inline uint16_t Narrow(ArrayKind kind, float value) {
  return kind == ArrayKind::kBFloat16 ? ToBFloat16(value) : ToFloat16(value);
}

// Of an array that is not coded.
template <int kCount>
OPTSHARD_HOST_DEVICE inline void LoadWidened(const KernelArray& array, const Place& place,
                                             float* to) {
  if (array.kind == ArrayKind::kFloat32) {
    LoadPlain<float, kCount>(array.values, place, to);
    return;
  }
  uint16_t halves[kCount];
  LoadPlain<uint16_t, kCount>(array.values, place, halves);
  OPTSHARD_UNROLL
  for (int k = 0; k < kCount; ++k) to[k] = Widen(array.kind, halves[k]);
}

template <int kCount>
OPTSHARD_HOST_DEVICE inline void StoreNarrowed(const float* from, const KernelArray& array,
                                               const Place& place) {
  if (array.kind == ArrayKind::kFloat32) {
    StorePlain<float, kCount>(from, array.values, place);
    return;
  }
  uint16_t halves[kCount];
  OPTSHARD_UNROLL
  for (int k = 0; k < kCount; ++k) halves[k] = Narrow(array.kind, from[k]);
  StorePlain<uint16_t, kCount>(halves, array.values, place);
}

}  // namespace kernels
}  // namespace optshard

#endif  // OPTSHARD_SERVER_UPDATE_CUDA_ELEMENT_ARRAYS_H_
