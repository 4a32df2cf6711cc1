// A thread's elements of an array, as they lie in memory and as float32: for kernels.
#ifndef OPTSHARD_SERVER_UPDATE_CUDA_ELEMENT_ARRAYS_H_
#define OPTSHARD_SERVER_UPDATE_CUDA_ELEMENT_ARRAYS_H_

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "common/half.h"
#include "common/host_device.h"
#include "server/update/cuda/kernel_arguments.h"

namespace optshard {
namespace kernels {

// Loaded and stored at once.
template <typename T, int kCount>
struct alignas(sizeof(T) * kCount) Pack {
  T values[kCount];
};

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

// T is float or double.
template <typename T, class Place>
OPTSHARD_HOST_DEVICE inline void LoadPlain(const void* array, const Place& place, T* to) {
  OPTSHARD_IN_DEVICE_MEMORY(array);
  const T* const from = static_cast<const T*>(array) + place.first;
  if (place.is_whole) {
    const auto pack = *reinterpret_cast<const Pack<T, Place::kCount>*>(from);
    OPTSHARD_UNROLL
    for (int k = 0; k < Place::kCount; ++k) to[k] = pack.values[k];
    return;
  }
  OPTSHARD_UNROLL
  for (int k = 0; k < Place::kCount; ++k) to[k] = place.Has(0, k) ? from[k] : T{};
}

template <typename T, class Place>
OPTSHARD_HOST_DEVICE inline void StorePlain(const T* from, void* array, const Place& place) {
  OPTSHARD_IN_DEVICE_MEMORY(array);
  T* const to = static_cast<T*>(array) + place.first;
  if (place.is_whole) {
    Pack<T, Place::kCount> pack;
    OPTSHARD_UNROLL
    for (int k = 0; k < Place::kCount; ++k) pack.values[k] = from[k];
    *reinterpret_cast<Pack<T, Place::kCount>*>(to) = pack;
    return;
  }
  OPTSHARD_UNROLL
  for (int k = 0; k < Place::kCount; ++k) {
    if (place.Has(0, k)) to[k] = from[k];
  }
}

// Elements of one, two or four bytes.
template <int kBytes>
using ElementOf =
    std::conditional_t<kBytes == 4, uint32_t, std::conditional_t<kBytes == 2, uint16_t, uint8_t>>;

// The elements, as many in each 32-bit word as fit, the first one lowest. They are loaded before
// any is computed with: a thread waits for all arrays at once.
template <int kBytes, bool kWhole, class Place>
OPTSHARD_HOST_DEVICE inline void LoadWords(const void* array, const Place& place, uint32_t* words) {
  using Element = ElementOf<kBytes>;
  constexpr int kInWord = 4 / kBytes;
  constexpr int kWords = Place::kTogether / kInWord;
  OPTSHARD_IN_DEVICE_MEMORY(array);
  OPTSHARD_UNROLL
  for (int group = 0; group < Place::kGroups; ++group) {
    const Element* const from = static_cast<const Element*>(array) + place.FirstOf(group);
    uint32_t* const of_group = words + group * kWords;
    if constexpr (kWhole) {
      const auto pack = *reinterpret_cast<const Pack<uint32_t, kWords>*>(from);
      OPTSHARD_UNROLL
      for (int w = 0; w < kWords; ++w) of_group[w] = pack.values[w];
    } else {
      OPTSHARD_UNROLL
      for (int k = 0; k < Place::kTogether; ++k) {
        if (k % kInWord == 0) of_group[k / kInWord] = 0;
        if (!place.Has(group, k)) continue;
        of_group[k / kInWord] |= uint32_t{from[k]} << (8 * kBytes * (k % kInWord));
      }
    }
  }
}

// One, two or four words, at once: of other stores of theirs, nvcc makes one for each word, to
// share them with those of places that are not whole.
template <int kWords>
OPTSHARD_HOST_DEVICE inline void StorePack(const uint32_t* words, void* to) {
#ifdef __CUDA_ARCH__
  if constexpr (kWords == 4) {
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(words[0]), "r"(words[1]),
                 "r"(words[2]), "r"(words[3])
                 : "memory");
  } else if constexpr (kWords == 2) {
    asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(to), "r"(words[0]), "r"(words[1])
                 : "memory");
  } else {
    *static_cast<uint32_t*>(to) = words[0];
  }
#else
  std::memcpy(to, words, kWords * sizeof(uint32_t));
#endif
}

template <int kBytes, bool kWhole, class Place>
OPTSHARD_HOST_DEVICE inline void StoreWords(const uint32_t* words, void* array,
                                            const Place& place) {
  using Element = ElementOf<kBytes>;
  constexpr int kInWord = 4 / kBytes;
  constexpr int kWords = Place::kTogether / kInWord;
  OPTSHARD_IN_DEVICE_MEMORY(array);
  OPTSHARD_UNROLL
  for (int group = 0; group < Place::kGroups; ++group) {
    Element* const to = static_cast<Element*>(array) + place.FirstOf(group);
    const uint32_t* const of_group = words + group * kWords;
    if constexpr (kWhole) {
      StorePack<kWords>(of_group, to);
    } else {
      OPTSHARD_UNROLL
      for (int k = 0; k < Place::kTogether; ++k) {
        const uint32_t word = of_group[k / kInWord];
        if (place.Has(group, k)) to[k] = static_cast<Element>(word >> (8 * kBytes * (k % kInWord)));
      }
    }
  }
}

// Two 16-bit numbers in a word. What a GPU's own instructions make is that of common/half.h, but
// for the bits of NaN.
OPTSHARD_HOST_DEVICE inline void WidenBFloat16(uint32_t word, float* to) {
  to[0] = FloatOf(word << 16);
  to[1] = FloatOf(word & 0xffff0000);
}
OPTSHARD_HOST_DEVICE inline void WidenFloat16(uint32_t word, float* to) {
#ifdef __CUDA_ARCH__
  asm("{ .reg .b16 low, high; mov.b32 {low, high}, %2; cvt.f32.f16 %0, low; cvt.f32.f16 %1, high; }"
      : "=f"(to[0]), "=f"(to[1])
      : "r"(word));
#else
  to[0] = FromFloat16(static_cast<uint16_t>(word));
  to[1] = FromFloat16(static_cast<uint16_t>(word >> 16));
#endif
}
OPTSHARD_HOST_DEVICE inline uint32_t NarrowBFloat16(const float* from) {
#ifdef __CUDA_ARCH__
  uint32_t word;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(from[1]), "f"(from[0]));
  return word;
#else
  return ToBFloat16(from[0]) | uint32_t{ToBFloat16(from[1])} << 16;
#endif
}
OPTSHARD_HOST_DEVICE inline uint32_t NarrowFloat16(const float* from) {
#ifdef __CUDA_ARCH__
  uint32_t word;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(from[1]), "f"(from[0]));
  return word;
#else
  return ToFloat16(from[0]) | uint32_t{ToFloat16(from[1])} << 16;
#endif
}

template <int kCount>
OPTSHARD_HOST_DEVICE inline void WidenWords(ArrayKind half, const uint32_t* words, float* to) {
  if (half == ArrayKind::kBFloat16) {
    OPTSHARD_UNROLL
    for (int w = 0; w < kCount / 2; ++w) WidenBFloat16(words[w], to + 2 * w);
  } else {
    OPTSHARD_UNROLL
    for (int w = 0; w < kCount / 2; ++w) WidenFloat16(words[w], to + 2 * w);
  }
}
template <int kCount>
OPTSHARD_HOST_DEVICE inline void NarrowToWords(ArrayKind half, const float* from, uint32_t* words) {
  if (half == ArrayKind::kBFloat16) {
    OPTSHARD_UNROLL
    for (int w = 0; w < kCount / 2; ++w) words[w] = NarrowBFloat16(from + 2 * w);
  } else {
    OPTSHARD_UNROLL
    for (int w = 0; w < kCount / 2; ++w) words[w] = NarrowFloat16(from + 2 * w);
  }
}

// The kind of an array, if that is known when this is compiled; kAnyKind if it is not.
template <ArrayKind kKnown>
OPTSHARD_HOST_DEVICE inline ArrayKind KindAs(const KernelArray& array) {
  return kKnown == kAnyKind ? array.kind : kKnown;
}

// Of an array that is not coded.
template <ArrayKind kKnown, bool kWhole, class Place>
OPTSHARD_HOST_DEVICE inline void LoadAs(const KernelArray& array, const Place& place,
                                        uint32_t* words) {
  if (KindAs<kKnown>(array) == ArrayKind::kFloat32) {
    LoadWords<4, kWhole>(array.values, place, words);
  } else {
    LoadWords<2, kWhole>(array.values, place, words);
  }
}
template <ArrayKind kKnown, int kCount>
OPTSHARD_HOST_DEVICE inline void Widened(const KernelArray& array, const uint32_t* words,
                                         float* to) {
  const ArrayKind kind = KindAs<kKnown>(array);
  if (kind == ArrayKind::kFloat32) {
    OPTSHARD_UNROLL
    for (int k = 0; k < kCount; ++k) to[k] = FloatOf(words[k]);
  } else {
    WidenWords<kCount>(kind, words, to);
  }
}
template <ArrayKind kKnown, bool kWhole, class Place>
OPTSHARD_HOST_DEVICE inline void StoreAs(const float* from, const KernelArray& array,
                                         const Place& place) {
  const ArrayKind kind = KindAs<kKnown>(array);
  uint32_t words[Place::kCount];
  if (kind == ArrayKind::kFloat32) {
    OPTSHARD_UNROLL
    for (int k = 0; k < Place::kCount; ++k) words[k] = BitsOf(from[k]);
    StoreWords<4, kWhole>(words, array.values, place);
  } else {
    NarrowToWords<Place::kCount>(kind, from, words);
    StoreWords<2, kWhole>(words, array.values, place);
  }
}

}  // namespace kernels
}  // namespace optshard

#endif  // OPTSHARD_SERVER_UPDATE_CUDA_ELEMENT_ARRAYS_H_
