// A campaign's size or seed, which whoever runs it may give.
#ifndef OPTSHARD_TESTS_TESTING_NUMBER_FROM_ENVIRONMENT_H_
#define OPTSHARD_TESTS_TESTING_NUMBER_FROM_ENVIRONMENT_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>

#include "absl/strings/numbers.h"

namespace optshard::testing {

// The number that the variable has, or `otherwise` where it is not set.
inline uint64_t NumberFromEnvironment(const char* variable, uint64_t otherwise) {
  const char* const given = std::getenv(variable);
  uint64_t number = otherwise;
  if (given != nullptr && !absl::SimpleAtoi(given, &number)) {
    ADD_FAILURE() << variable << " is " << given << ", expected a number";
    return otherwise;
  }
  return number;
}

}  // namespace optshard::testing

#endif  // OPTSHARD_TESTS_TESTING_NUMBER_FROM_ENVIRONMENT_H_
