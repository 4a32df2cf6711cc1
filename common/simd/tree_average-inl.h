// The average over a reduction tree, an element or a vector of them at a time: the one place where
// its order and its division stand. Compiled once for every instruction set.
#if defined(OPTSHARD_COMMON_SIMD_TREE_AVERAGE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OPTSHARD_COMMON_SIMD_TREE_AVERAGE_INL_H_
#undef OPTSHARD_COMMON_SIMD_TREE_AVERAGE_INL_H_
#else
#define OPTSHARD_COMMON_SIMD_TREE_AVERAGE_INL_H_
#endif

#include <cstdint>

#include "common/simd/half-inl.h"
#include "common/simd/lanes-inl.h"
#include "common/simd/memory-inl.h"
#include "common/simd/scalar.h"
#include "common/simd/tree_arrays.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace optshard {
namespace HWY_NAMESPACE {

// What the arrays hold: numbers of E itself, or of a 16-bit type, which are widened.
struct Same {
  template <class E>
  static HWY_INLINE E Load(const void* array, int64_t at) {
    return E::Load(static_cast<const typename E::Number*>(array) + at);
  }
  template <class E>
  static HWY_INLINE void FetchAhead(const void* array, int64_t at) {
    HWY_NAMESPACE::FetchAhead(static_cast<const typename E::Number*>(array) + at);
  }
};
template <class Half>
struct Widened {
  template <class E>
  static HWY_INLINE E Load(const void* array, int64_t at) {
    E value;
    LoadHalf<Half>(static_cast<const uint16_t*>(array) + at, value);
    return value;
  }
  template <class E>
  static HWY_INLINE void FetchAhead(const void* array, int64_t at) {
    HWY_NAMESPACE::FetchAhead(static_cast<const uint16_t*>(array) + at);
  }
};

enum class TreeShape { kOne, kTwo, kAny };

// The common cases apart: the average of one or two leaves, none of them null.
HWY_INLINE TreeShape ShapeOf(const TreeArrays& tree) {
  if (tree.count > 2 || tree.count != tree.divisor) return TreeShape::kAny;
  for (int k = 0; k < tree.count; ++k) {
    if (tree.arrays[k] == nullptr) return TreeShape::kAny;
  }
  return tree.count == 1 ? TreeShape::kOne : TreeShape::kTwo;
}

// Of the only leaf: dividing by 1 changes nothing.
template <class E, class Source>
class AverageOfOne {
 public:
  HWY_INLINE explicit AverageOfOne(const TreeArrays& tree)
      : array_(tree.arrays[0]), first_(tree.first) {}
  HWY_INLINE E At(int64_t i) const { return Source::template Load<E>(array_, first_ + i); }
  HWY_INLINE void FetchAhead(int64_t i) const {
    Source::template FetchAhead<E>(array_, first_ + i);
  }

 private:
  const void* array_;
  int64_t first_;
};

// Any tree over two leaves is their sum.
template <class E, class Source>
class AverageOfTwo {
 public:
  HWY_INLINE explicit AverageOfTwo(const TreeArrays& tree)
      : one_(tree.arrays[0]), other_(tree.arrays[1]), first_(tree.first) {}
  HWY_INLINE void FetchAhead(int64_t i) const {
    Source::template FetchAhead<E>(one_, first_ + i);
    Source::template FetchAhead<E>(other_, first_ + i);
  }
  // Halving gives the bits of dividing by 2: both round the same number.
  HWY_INLINE E At(int64_t i) const {
    return (Source::template Load<E>(one_, first_ + i) +
            Source::template Load<E>(other_, first_ + i)) *
           E(0.5f);
  }

 private:
  const void* one_;
  const void* other_;
  int64_t first_;
};

template <class E, class Source>
class AverageOfTree {
  using Number = typename E::Number;

 public:
  HWY_INLINE explicit AverageOfTree(const TreeArrays& tree)
      : tree_(tree), divisor_(static_cast<Number>(tree.divisor)) {}

  HWY_INLINE E At(int64_t i) const {
    const void* const* next = tree_.arrays;
    E total = SumOfGroup(next, tree_.group_sizes[0], tree_.first + i);
    for (int group = 1; group < tree_.groups; ++group) {
      next += tree_.group_sizes[group - 1];
      total = total + SumOfGroup(next, tree_.group_sizes[group], tree_.first + i);
    }
    return total / divisor_;
  }
  HWY_INLINE void FetchAhead(int64_t i) const {
    for (int k = 0; k < tree_.count; ++k) {
      if (tree_.arrays[k] == nullptr) continue;
      Source::template FetchAhead<E>(tree_.arrays[k], tree_.first + i);
    }
  }

 private:
  // A leaf without an array adds +0, as the zeros would: -0 + 0 is +0.
  static HWY_INLINE E Value(const void* array, int64_t at) {
    return array == nullptr ? E(0.0f) : Source::template Load<E>(array, at);
  }
  static HWY_INLINE E SumOfGroup(const void* const* arrays, int size, int64_t at) {
    E sum = Value(arrays[0], at);
    for (int k = 1; k < size; ++k) sum = sum + Value(arrays[k], at);
    return sum;
  }

  const TreeArrays tree_;
  E divisor_;
};

}  // namespace HWY_NAMESPACE
}  // namespace optshard
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
