#include "common/dataplane/tree_average.h"

#include "common/default_floating_point.h"
#include "common/simd/scalar.h"
#include "common/simd/tree_arrays.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "common/dataplane/tree_average.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "common/simd/half-inl.h"
#include "common/simd/lanes-inl.h"
#include "common/simd/memory-inl.h"
#include "common/simd/tree_average-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace optshard {
namespace HWY_NAMESPACE {
namespace {

// Returns how many elements are done: whole vectors only, or all one by one.
template <class E, class Average>
int64_t AverageFrom(const TreeArrays& tree, int64_t begin, int64_t elements,
                    typename E::Number* result) {
  const Average average(tree);
  int64_t i = begin;
  for (; i + E::Width() <= elements; i += E::Width()) {
    if (BeginsLine<E>(i)) average.FetchAhead(i);
    average.At(i).Store(result + i);
  }
  return i;
}

template <class E, class Source>
int64_t AverageBy(const TreeArrays& tree, int64_t begin, int64_t elements,
                  typename E::Number* result) {
  switch (ShapeOf(tree)) {
    case TreeShape::kOne:
      return AverageFrom<E, AverageOfOne<E, Source>>(tree, begin, elements, result);
    case TreeShape::kTwo:
      return AverageFrom<E, AverageOfTwo<E, Source>>(tree, begin, elements, result);
    case TreeShape::kAny:
      break;
  }
  return AverageFrom<E, AverageOfTree<E, Source>>(tree, begin, elements, result);
}

template <class Source, typename T>
void AverageAll(const TreeArrays& tree, int64_t elements, T* result) {
  const int64_t done = AverageBy<LanesOf<T>, Source>(tree, 0, elements, result);
  AverageBy<ScalarOf<T>, Source>(tree, done, elements, result);
}

void AverageOfFloat32(const TreeArrays& tree, int64_t elements, float* result) {
  AverageAll<Same>(tree, elements, result);
}
void AverageOfFloat64(const TreeArrays& tree, int64_t elements, double* result) {
  AverageAll<Same>(tree, elements, result);
}
void AverageOfFloat16(const TreeArrays& tree, int64_t elements, float* result) {
  AverageAll<Widened<Float16>>(tree, elements, result);
}
void AverageOfBFloat16(const TreeArrays& tree, int64_t elements, float* result) {
  AverageAll<Widened<BFloat16>>(tree, elements, result);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace optshard
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace optshard {
namespace {

HWY_EXPORT(AverageOfFloat32);
HWY_EXPORT(AverageOfFloat64);
HWY_EXPORT(AverageOfFloat16);
HWY_EXPORT(AverageOfBFloat16);

}  // namespace

void ReduceGroups(absl::Span<const int> group_sizes, int divisor, DType dtype,
                  absl::Span<const void* const> contributions, int64_t first, int64_t elements,
                  void* result) {
  const DefaultFloatingPoint default_mode;
  TreeArrays tree;
  tree.arrays = contributions.data();
  tree.count = static_cast<int>(contributions.size());
  tree.group_sizes = group_sizes.data();
  tree.groups = static_cast<int>(group_sizes.size());
  tree.divisor = divisor;
  tree.first = first;
  switch (dtype) {
    case DType::kFloat32:
      return HWY_DYNAMIC_DISPATCH(AverageOfFloat32)(tree, elements, static_cast<float*>(result));
    case DType::kFloat64:
      return HWY_DYNAMIC_DISPATCH(AverageOfFloat64)(tree, elements, static_cast<double*>(result));
    case DType::kFloat16:
      return HWY_DYNAMIC_DISPATCH(AverageOfFloat16)(tree, elements, static_cast<float*>(result));
    case DType::kBFloat16:
      return HWY_DYNAMIC_DISPATCH(AverageOfBFloat16)(tree, elements, static_cast<float*>(result));
  }
}

}  // namespace optshard
#endif  // HWY_ONCE
