// Random parameter spaces for property tests.
#ifndef OPTSHARD_TESTS_TESTING_RANDOM_SPACE_H_
#define OPTSHARD_TESTS_TESTING_RANDOM_SPACE_H_

#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "common/dtype.h"
#include "common/parameter_space.h"

namespace optshard {

// A valid space of up to 3 groups and 25 parameters, the same for the same seed on every machine:
// empty groups, zero-size parameters, sizes on and beside multiples of 1,024 up to 40,000 elements,
// all dtypes, two devices.
inline ParameterSpace RandomSpace(uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto below = [&](int64_t n) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(n));
  };
  constexpr DType kDTypes[] = {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16};
  const bool mixed = below(2) == 0;
  std::vector<GroupSpec> groups(1 + below(3));
  int64_t left = below(26);
  for (int64_t i = 0; left > 0; ++i, --left) {
    ParameterSpec spec;
    spec.name = "parameter" + std::to_string(i);
    switch (below(6)) {
      case 0:
        spec.shape = {0};
        break;
      case 1:
        break;  // a scalar
      case 2:
        spec.shape = {1 + below(3), 1024, 1 + below(8)};
        break;
      case 3:
        spec.shape = {1024 * (1 + below(4)) + 1 - below(3)};
        break;
      default:
        spec.shape = {1 + below(200), 1 + below(200)};
    }
    if (mixed) {
      spec.dtype = kDTypes[below(4)];
      if (below(4) == 0) spec.device = "cuda:0";
    }
    groups[below(static_cast<int64_t>(groups.size()))].parameters.push_back(std::move(spec));
  }
  return ParameterSpace(std::move(groups));
}

}  // namespace optshard

#endif  // OPTSHARD_TESTS_TESTING_RANDOM_SPACE_H_
