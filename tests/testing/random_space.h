// Parameter spaces of given sizes, and random ones for property tests.
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

// The same with groups added by one more admission, of which parameters have other names.
inline ParameterSpace Grown(const ParameterSpace& space, uint64_t seed) {
  std::vector<GroupSpec> groups = space.groups();
  const int admission = space.admission_count();
  const ParameterSpace added = RandomSpace(seed);
  for (GroupSpec group : added.groups()) {
    for (ParameterSpec& parameter : group.parameters) {
      parameter.name += ".added" + std::to_string(admission);
    }
    group.admission = admission;
    groups.push_back(std::move(group));
  }
  return ParameterSpace(std::move(groups));
}

// The same with parameters added to some of its groups by one more admission, which have other
// names.
inline ParameterSpace GrownWithin(const ParameterSpace& space, uint64_t seed) {
  std::vector<GroupSpec> groups = space.groups();
  const int admission = space.admission_count();
  const ParameterSpace added = RandomSpace(seed);
  for (size_t g = 0; g < groups.size(); ++g) {
    const std::vector<ParameterSpec>* more = nullptr;
    if (g < added.groups().size()) more = &added.groups()[g].parameters;
    if (more == nullptr || more->empty()) continue;
    groups[g].additions.push_back({static_cast<int>(groups[g].parameters.size()), admission});
    for (ParameterSpec parameter : *more) {
      parameter.name += ".added" + std::to_string(admission);
      groups[g].parameters.push_back(std::move(parameter));
    }
  }
  return ParameterSpace(std::move(groups));
}

// Groups of float32 vectors of these sizes: "parameter0", "parameter1" and so on.
inline ParameterSpace SpaceOf(const std::vector<std::vector<int64_t>>& groups) {
  std::vector<GroupSpec> specs;
  int number = 0;
  for (const std::vector<int64_t>& sizes : groups) {
    specs.emplace_back();
    for (int64_t size : sizes) {
      specs.back().parameters.push_back({"parameter" + std::to_string(number++), {size}});
    }
  }
  return ParameterSpace(std::move(specs));
}

}  // namespace optshard

#endif  // OPTSHARD_TESTS_TESTING_RANDOM_SPACE_H_
