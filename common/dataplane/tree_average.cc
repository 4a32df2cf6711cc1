#include "common/dataplane/tree_average.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/default_floating_point.h"

namespace optshard {
namespace {

// Two accumulators of this many elements stay in the first-level cache.
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
void Divide(T* result, const T* values, T divisor, int64_t elements) {
  for (int64_t i = 0; i < elements; ++i) result[i] = values[i] / divisor;
}

// The sum of one group's block: the block itself where the group has one rank, else `scratch`.
template <typename T>
const T* SumGroup(const std::vector<Rank>& group, absl::Span<const void* const> contributions,
                  int64_t offset, int64_t elements, T* scratch) {
  const auto block = [&](size_t member) {
    return static_cast<const T*>(contributions[group[member]]) + offset;
  };
  if (group.size() == 1) return block(0);
  Sum(scratch, block(0), block(1), elements);
  for (size_t member = 2; member < group.size(); ++member) Add(scratch, block(member), elements);
  return scratch;
}

template <typename T>
void Average(const ReductionTree& tree, absl::Span<const void* const> contributions,
             int64_t elements, T* result) {
  alignas(64) T total[kBlockElements];
  alignas(64) T group_sum[kBlockElements];
  const T world_size = static_cast<T>(contributions.size());
  for (int64_t offset = 0; offset < elements; offset += kBlockElements) {
    const int64_t count = std::min(kBlockElements, elements - offset);
    const T* sum = SumGroup(tree.node_groups[0], contributions, offset, count, total);
    for (size_t group = 1; group < tree.node_groups.size(); ++group) {
      const T* next = SumGroup(tree.node_groups[group], contributions, offset, count, group_sum);
      Sum(total, sum, next, count);
      sum = total;
    }
    // Written only now, so that `result` may be a contribution.
    Divide(result + offset, sum, world_size, count);
  }
}

}  // namespace

absl::Status CheckReducible(DType dtype) {
  if (dtype == DType::kFloat32 || dtype == DType::kFloat64) return absl::OkStatus();
  return absl::UnimplementedError(
      absl::StrCat("Reduce of dtype ", std::string(NameOf(dtype)),
                   ": gradients can be reduced in float32 and float64 only; convert them before"));
}

void TreeAverage(const ReductionTree& tree, DType dtype,
                 absl::Span<const void* const> contributions, int64_t elements, void* result) {
  const DefaultFloatingPoint default_mode;
  if (dtype == DType::kFloat64) {
    Average(tree, contributions, elements, static_cast<double*>(result));
  } else {
    Average(tree, contributions, elements, static_cast<float*>(result));
  }
}

}  // namespace optshard
