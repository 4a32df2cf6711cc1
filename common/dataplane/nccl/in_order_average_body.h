// What each thread of the in-order average does, also where that is a thread of the host: a test
// compares it with tree_average.h bit by bit, without a GPU.
#ifndef OPTSHARD_COMMON_DATAPLANE_NCCL_IN_ORDER_AVERAGE_BODY_H_
#define OPTSHARD_COMMON_DATAPLANE_NCCL_IN_ORDER_AVERAGE_BODY_H_

#include <cstdint>

#include "common/half.h"
#include "common/host_device.h"

namespace optshard {

// Passed to a kernel by value, 2.5 KiB.
struct InOrderSum {
  static constexpr int kMaxContributions = 256;

  const void* contributions[kMaxContributions];  // group after group, none of them null
  uint16_t group_sizes[kMaxContributions];       // none is 0
  int groups;
  int divisor;
};

// The types of a gradient: how it is stored, and what it is summed in.
struct InOrderFloat32 {
  using Stored = float;
  using Number = float;
  OPTSHARD_HOST_DEVICE static float Widen(float value) { return value; }
};
struct InOrderFloat64 {
  using Stored = double;
  using Number = double;
  OPTSHARD_HOST_DEVICE static double Widen(double value) { return value; }
};
struct InOrderFloat16 {
  using Stored = uint16_t;
  using Number = float;
  OPTSHARD_HOST_DEVICE static float Widen(uint16_t bits) { return FromFloat16(bits); }
};
struct InOrderBFloat16 {
  using Stored = uint16_t;
  using Number = float;
  OPTSHARD_HOST_DEVICE static float Widen(uint16_t bits) { return FromBFloat16(bits); }
};

// As many elements as a thread loads at once.
template <typename T, int kWidth>
struct alignas(sizeof(T) * kWidth) InOrderPack {
  T values[kWidth];
};

// Elements kWidth * index and on. Where kWidth is more than 1, all memory is 16-byte aligned.
template <class Type, int kWidth>
OPTSHARD_HOST_DEVICE void AverageInOrderAt(const InOrderSum& sum, int64_t index, void* result) {
  using Number = typename Type::Number;
  using Contribution = InOrderPack<typename Type::Stored, kWidth>;
  // 128 bits at a time, also of a result that is wider than the contributions.
  constexpr int kStored = sizeof(Number) * kWidth > 16 ? 16 / sizeof(Number) : kWidth;
  Number total[kWidth] = {};
  int next = 0;
  for (int group = 0; group < sum.groups; ++group) {
    Number of_group[kWidth] = {};
    for (int member = 0; member < sum.group_sizes[group]; ++member, ++next) {
      const Contribution here = static_cast<const Contribution*>(sum.contributions[next])[index];
      OPTSHARD_UNROLL
      for (int k = 0; k < kWidth; ++k) {
        const Number value = Type::Widen(here.values[k]);
        of_group[k] = member == 0 ? value : of_group[k] + value;
      }
    }
    OPTSHARD_UNROLL
    for (int k = 0; k < kWidth; ++k) total[k] = group == 0 ? of_group[k] : total[k] + of_group[k];
  }
  const Number divisor = static_cast<Number>(sum.divisor);
  OPTSHARD_UNROLL
  for (int first = 0; first < kWidth; first += kStored) {
    InOrderPack<Number, kStored> average;
    OPTSHARD_UNROLL
    for (int k = 0; k < kStored; ++k) average.values[k] = total[first + k] / divisor;
    static_cast<InOrderPack<Number, kStored>*>(result)[(index * kWidth + first) / kStored] =
        average;
  }
}

// The share of thread `first` of `threads`: packs of 16 bytes where all memory is aligned for them,
// and what is left one by one.
template <class Type>
OPTSHARD_HOST_DEVICE void AverageInOrder(const InOrderSum& sum, int64_t elements, void* result,
                                         bool aligned, int64_t first, int64_t threads) {
  constexpr int kWidth = 16 / sizeof(typename Type::Stored);
  const int64_t packs = aligned ? elements / kWidth : 0;
  for (int64_t i = first; i < packs; i += threads) AverageInOrderAt<Type, kWidth>(sum, i, result);
  for (int64_t i = packs * kWidth + first; i < elements; i += threads) {
    AverageInOrderAt<Type, 1>(sum, i, result);
  }
}

}  // namespace optshard

#endif  // OPTSHARD_COMMON_DATAPLANE_NCCL_IN_ORDER_AVERAGE_BODY_H_
