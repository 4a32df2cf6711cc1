// Makes run-time dispatch choose an instruction set, so that tests run all that this CPU has.
#ifndef OPTSHARD_TESTS_TESTING_SIMD_TARGETS_H_
#define OPTSHARD_TESTS_TESTING_SIMD_TARGETS_H_

#include <cstdint>
#include <string>
#include <vector>

namespace optshard::testing {

// Makes `target` the one that run-time dispatch chooses; 0 is the choice for this CPU.
void ChooseTarget(int64_t target);

// Those that this CPU has and code is compiled for.
std::vector<int64_t> AllTargets();

std::string TargetNameOf(int64_t target);  // "AVX2"

}  // namespace optshard::testing

#endif  // OPTSHARD_TESTS_TESTING_SIMD_TARGETS_H_
