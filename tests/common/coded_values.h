// Arrays of coded values, for the tests of the codes.
#ifndef OPTSHARD_TESTS_COMMON_CODED_VALUES_H_
#define OPTSHARD_TESTS_COMMON_CODED_VALUES_H_

#include <cstdint>
#include <vector>

#include "common/block_code.h"
#include "gtest/gtest.h"
#include "tests/testing/simd_targets.h"

namespace optshard::testing {

bool IsDynamic(BlockCode code);

// The codes and scales of so many elements, with a guard behind each.
struct Coded {
  Coded(BlockCode block_code, int64_t elements);

  CodedArray array() { return {code, codes.data(), scales.data()}; }
  float scale(int64_t block) const;
  bool guards_stand() const { return codes.back() == 0xee && scales.back() == 0xeeee; }
  friend bool operator==(const Coded& a, const Coded& b) {
    return a.codes == b.codes && a.scales == b.scales;
  }

  BlockCode code;
  std::vector<uint8_t> codes;
  std::vector<uint16_t> scales;
};

Coded Encoded(BlockCode code, const std::vector<float>& values);
std::vector<float> Decoded(Coded coded);

// Over many powers of ten, as slots are.
std::vector<float> RandomValues(BlockCode code, int64_t elements, double size, uint32_t seed);

class EveryTargetTest : public ::testing::Test {
 protected:
  ~EveryTargetTest() override { ChooseTarget(0); }
};

}  // namespace optshard::testing

#endif  // OPTSHARD_TESTS_COMMON_CODED_VALUES_H_
