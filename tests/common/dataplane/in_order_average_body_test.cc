// The body of the GPU's sum, run by threads of the host, against the definition on CPUs.
#include "common/dataplane/nccl/in_order_average_body.h"

#include <algorithm>
#include <type_traits>
#include <vector>

#include "common/dataplane/tree_average.h"
#include "common/dtype.h"
#include "common/dtype_conversion.h"
#include "gtest/gtest.h"
#include "tests/common/dataplane/order_sensitive.h"

namespace optshard {
namespace {

constexpr int64_t kElements = 1003;  // not a multiple of a pack
constexpr int64_t kThreads = 96;     // fewer than packs, so that each goes round

struct Shape {
  std::vector<int> group_sizes;
  int divisor;
};

const std::vector<Shape>& Shapes() {
  static const auto* const kShapes = new std::vector<Shape>{
      {{1}, 1}, {{1}, 3}, {{2}, 2}, {{1, 1}, 2}, {{3}, 3}, {{1, 3, 2}, 6}, {{5, 2}, 4}};
  return *kShapes;
}

// Of the stored type, 16-byte aligned or not.
template <typename Stored>
std::vector<Stored> Contribution(DType dtype, int rank, int64_t offset) {
  std::vector<Stored> stored(kElements + offset);
  if constexpr (std::is_same_v<Stored, uint16_t>) {
    const std::vector<float> exact = OrderSensitiveValues<float>(rank, kElements);
    Narrow(dtype, exact.data(), kElements, stored.data() + offset);
  } else {
    const std::vector<Stored> exact = OrderSensitiveValues<Stored>(rank, kElements);
    std::copy(exact.begin(), exact.end(), stored.begin() + offset);
  }
  return stored;
}

template <class Type>
void CompareAll(DType dtype) {
  using Stored = typename Type::Stored;
  using Number = typename Type::Number;
  for (const Shape& shape : Shapes()) {
    for (const bool aligned : {true, false}) {
      const int64_t offset = aligned ? 0 : 1;
      InOrderSum sum{};
      std::vector<std::vector<Stored>> contributions;
      std::vector<const void*> addresses;
      for (const int size : shape.group_sizes) {
        sum.group_sizes[sum.groups++] = static_cast<uint16_t>(size);
        for (int member = 0; member < size; ++member) {
          const int number = static_cast<int>(contributions.size());
          contributions.push_back(Contribution<Stored>(dtype, number, offset));
          sum.contributions[number] = contributions.back().data() + offset;
          addresses.push_back(sum.contributions[number]);
        }
      }
      sum.divisor = shape.divisor;
      std::vector<Number> expected(kElements), result(kElements);
      ReduceGroups(shape.group_sizes, shape.divisor, dtype, addresses, 0, kElements,
                   expected.data());
      for (int64_t thread = 0; thread < kThreads; ++thread) {
        AverageInOrder<Type>(sum, kElements, result.data(), aligned, thread, kThreads);
      }
      EXPECT_TRUE(SameBits(result, expected))
          << NameOf(dtype) << ", " << contributions.size() << " contributions divided by "
          << shape.divisor << (aligned ? ", aligned" : ", not aligned");
    }
  }
}

TEST(InOrderAverageBody, EveryTypeAndShape_HasTheBitsOfTheHost) {
  CompareAll<InOrderFloat32>(DType::kFloat32);
  CompareAll<InOrderFloat64>(DType::kFloat64);
  CompareAll<InOrderFloat16>(DType::kFloat16);
  CompareAll<InOrderBFloat16>(DType::kBFloat16);
}

TEST(InOrderAverageBody, ResultInPlaceOfAContribution_IsTheSame) {
  std::vector<std::vector<float>> values = {OrderSensitiveValues<float>(0, kElements),
                                            OrderSensitiveValues<float>(1, kElements)};
  InOrderSum sum{};
  sum.group_sizes[sum.groups++] = 2;
  sum.contributions[0] = values[0].data();
  sum.contributions[1] = values[1].data();
  sum.divisor = 2;
  const std::vector<float> expected = ExpectedAverage<float>(OneGroup(2), 2, kElements);
  for (int64_t thread = 0; thread < kThreads; ++thread) {
    AverageInOrder<InOrderFloat32>(sum, kElements, values[1].data(), true, thread, kThreads);
  }
  EXPECT_TRUE(SameBits(values[1], expected));
}

}  // namespace
}  // namespace optshard
