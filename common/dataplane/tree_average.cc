#include "common/dataplane/tree_average.h"

#include <algorithm>
#include <type_traits>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "common/buffer.h"
#include "common/default_floating_point.h"
#include "common/dtype_conversion.h"

namespace optshard {
namespace {

// Two sums of this many elements and one widened contribution stay in the first-level cache.
constexpr int64_t kBlockElements = 1024;

template <typename T>
void Add(T* accumulator, const T* values, int64_t elements) {
  for (int64_t i = 0; i < elements; ++i) accumulator[i] += values[i];
}

// accumulator = first + second: saves a copy at the beginning of a group.
template <typename T>
void Sum(T* accumulator, const T* first, const T* second, int64_t elements) {
  for (int64_t i = 0; i < elements; ++i) accumulator[i] = first[i] + second[i];
}

template <typename T>
void Divide(T* result, const T* values, int count, int64_t elements) {
  // Of a power of two the reciprocal is exact: multiplying rounds the same number, several times as
  // fast.
  if ((count & (count - 1)) == 0) {
    const T share = 1 / static_cast<T>(count);
    for (int64_t i = 0; i < elements; ++i) result[i] = values[i] * share;
  } else {
    const T divisor = static_cast<T>(count);
    for (int64_t i = 0; i < elements; ++i) result[i] = values[i] / divisor;
  }
}

// The contributions of one type X, computed in T.
template <typename T>
class Contributions {
 public:
  Contributions(DType dtype, absl::Span<const void* const> arrays)
      : dtype_(dtype), arrays_(arrays) {}

  // `elements` values of array `index` from `offset` on: where they lie, or in `memory`.
  const T* Load(size_t index, int64_t offset, int64_t elements, T* memory) const {
    const ConstBuffer from = ConstBuffer(arrays_[index], dtype_).From(offset);
    if (!from) {
      std::fill_n(memory, elements, T{0});
      return memory;
    }
    if constexpr (std::is_same_v<T, float>) {
      if (dtype_ != DType::kFloat32) {
        Widen(dtype_, from.data(), elements, memory);
        return memory;
      }
    }
    return static_cast<const T*>(from.data());
  }

 private:
  const DType dtype_;
  const absl::Span<const void* const> arrays_;
};

// The sum of one group's block: the block itself where the group has one member, else in `sum`.
template <typename T>
const T* SumGroup(const Contributions<T>& contributions, size_t first, int size, int64_t offset,
                  int64_t elements, T* sum) {
  if (size == 1) return contributions.Load(first, offset, elements, sum);
  alignas(64) T memory[kBlockElements];
  const T* const begin = contributions.Load(first, offset, elements, sum);
  Sum(sum, begin, contributions.Load(first + 1, offset, elements, memory), elements);
  for (int member = 2; member < size; ++member) {
    Add(sum, contributions.Load(first + member, offset, elements, memory), elements);
  }
  return sum;
}

template <typename T>
void Average(absl::Span<const int> group_sizes, const Contributions<T>& contributions, int count,
             int64_t first, int64_t elements, T* result) {
  alignas(64) T total[kBlockElements];
  alignas(64) T group_sum[kBlockElements];
  for (int64_t done = 0; done < elements; done += kBlockElements) {
    const int64_t block = std::min(kBlockElements, elements - done);
    size_t member = 0;
    const T* sum = SumGroup(contributions, member, group_sizes[0], first + done, block, total);
    for (size_t group = 1; group < group_sizes.size(); ++group) {
      member += group_sizes[group - 1];
      const T* const next =
          SumGroup(contributions, member, group_sizes[group], first + done, block, group_sum);
      Sum(total, sum, next, block);
      sum = total;
    }
    // Written only now, so that `result` may be a contribution.
    Divide(result + done, sum, count, block);
  }
}

}  // namespace

void AverageOfGroups(absl::Span<const int> group_sizes, DType dtype,
                     absl::Span<const void* const> contributions, int64_t first, int64_t elements,
                     void* result) {
  const DefaultFloatingPoint default_mode;
  if (dtype == DType::kFloat64) {
    Average(group_sizes, Contributions<double>(dtype, contributions),
            static_cast<int>(contributions.size()), first, elements, static_cast<double*>(result));
  } else {
    Average(group_sizes, Contributions<float>(dtype, contributions),
            static_cast<int>(contributions.size()), first, elements, static_cast<float*>(result));
  }
}

void TreeAverage(const ReductionTree& tree, DType dtype,
                 absl::Span<const void* const> contributions, int64_t elements, void* result) {
  absl::InlinedVector<int, 8> group_sizes;
  absl::InlinedVector<const void*, 16> in_tree_order;
  for (const std::vector<Rank>& group : tree.node_groups) {
    group_sizes.push_back(static_cast<int>(group.size()));
    for (const Rank rank : group) in_tree_order.push_back(contributions[rank]);
  }
  AverageOfGroups(group_sizes, dtype, in_tree_order, 0, elements, result);
}

}  // namespace optshard
