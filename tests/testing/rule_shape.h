// Shapes for tests that go over every rule.
#ifndef OPTSHARD_TESTS_TESTING_RULE_SHAPE_H_
#define OPTSHARD_TESTS_TESTING_RULE_SHAPE_H_

#include <cstdint>
#include <vector>

#include "server/update/update_rule.h"

namespace optshard::testing {

// `shape`, or, where the rule does not take it, that of a matrix with as many elements.
inline std::vector<int64_t> ShapeFor(const UpdateRule& rule, std::vector<int64_t> shape) {
  if (rule.CheckParameter(shape).ok()) return shape;
  int64_t elements = 1;
  for (const int64_t extent : shape) elements *= extent;
  int64_t columns = 64;
  while (elements % columns != 0) columns /= 2;
  return {elements / columns, columns};
}

}  // namespace optshard::testing

#endif  // OPTSHARD_TESTS_TESTING_RULE_SHAPE_H_
