// Values whose sum has other bits in each order, and what a reduction has to make of them.
#ifndef OPTSHARD_TESTS_COMMON_DATAPLANE_ORDER_SENSITIVE_H_
#define OPTSHARD_TESTS_COMMON_DATAPLANE_ORDER_SENSITIVE_H_

#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/plan.h"
#include "gtest/gtest.h"

namespace optshard {

inline ReductionTree OneGroup(int world_size) {
  ReductionTree tree;
  tree.node_groups.emplace_back(world_size);
  std::iota(tree.node_groups[0].begin(), tree.node_groups[0].end(), 0);
  return tree;
}

// One group; every rank alone; two nodes with the ranks dealt out to them.
inline std::vector<ReductionTree> Trees(int world_size) {
  std::vector<ReductionTree> trees = {OneGroup(world_size)};
  if (world_size < 2) return trees;
  ReductionTree alone;
  ReductionTree dealt;
  dealt.node_groups.resize(2);
  for (int rank = 0; rank < world_size; ++rank) {
    alone.node_groups.push_back({rank});
    dealt.node_groups[rank % 2].push_back(rank);
  }
  trees.push_back(alone);
  trees.push_back(dealt);
  return trees;
}

// Of such magnitudes that each order of summation gives other bits.
template <typename T>
std::vector<T> OrderSensitiveValues(Rank rank, int64_t elements, int seed = 1) {
  std::mt19937_64 random(1000 * seed + rank);
  std::uniform_real_distribution<double> mantissa(-2.0, 2.0);
  std::uniform_int_distribution<int> exponent(-12, 12);
  std::vector<T> values(elements);
  for (T& value : values) value = static_cast<T>(std::ldexp(mantissa(random), exponent(random)));
  return values;
}

// The definition, one element at a time. `values`: of all ranks.
template <typename T>
std::vector<T> AverageOf(const ReductionTree& tree, const std::vector<std::vector<T>>& values) {
  std::vector<T> expected(values[0].size());
  for (size_t i = 0; i < expected.size(); ++i) {
    T total = 0;
    for (size_t g = 0; g < tree.node_groups.size(); ++g) {
      const std::vector<Rank>& group = tree.node_groups[g];
      T sum = values[group[0]][i];
      for (size_t m = 1; m < group.size(); ++m) sum = sum + values[group[m]][i];
      total = g == 0 ? sum : total + sum;
    }
    expected[i] = total / static_cast<T>(values.size());
  }
  return expected;
}

template <typename T>
std::vector<T> ExpectedAverage(const ReductionTree& tree, int world_size, int64_t elements,
                               int seed = 1) {
  std::vector<std::vector<T>> values;
  for (int rank = 0; rank < world_size; ++rank) {
    values.push_back(OrderSensitiveValues<T>(rank, elements, seed));
  }
  return AverageOf(tree, values);
}

template <typename T>
::testing::AssertionResult SameBits(const std::vector<T>& actual, const std::vector<T>& expected) {
  for (size_t i = 0; i < expected.size(); ++i) {
    if (std::memcmp(&actual[i], &expected[i], sizeof(T)) == 0) continue;
    const auto hex = [](T value) {
      std::string text;
      for (size_t b = sizeof(T); b-- > 0;) {
        absl::StrAppend(&text,
                        absl::Hex(reinterpret_cast<unsigned char*>(&value)[b], absl::kZeroPad2));
      }
      return text;
    };
    return ::testing::AssertionFailure() << "element " << i << " of " << expected.size() << ": 0x"
                                         << hex(actual[i]) << ", expected 0x" << hex(expected[i]);
  }
  return ::testing::AssertionSuccess();
}

}  // namespace optshard

#endif  // OPTSHARD_TESTS_COMMON_DATAPLANE_ORDER_SENSITIVE_H_
