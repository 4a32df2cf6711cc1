// Kernels of sums of squares, run on the host thread by thread: the bits of the CPU's sums.
#include "tests/server/update/cuda/squares_on_host.h"

#include <cstdint>
#include <cstring>

#include "common/simd/norms.h"
#include "gtest/gtest.h"
#include "server/update/cuda/squares_body.h"
#include "server/update/cuda/squares_table.h"
#include "tests/server/update/cuda/squares_jobs.h"
#include "tests/server/update/rule_cases.h"

namespace optshard::testing {
namespace {

TEST(SquaresOnHost_AnyTypeSizeAndAlignment, BitsOfTheCpu_AndCountsOfWhatIsNotFinite) {
  for (const SquaresShape& shape : SquaresShapes()) {
    for (uint32_t seed = 0; seed < 8; ++seed) {
      const SquaresJob job(shape, seed);
      AlignedFloats memory(job.memory().size() / sizeof(float) + 1);
      std::memcpy(memory.data(), job.memory().data(), job.memory().size());
      const SquaresTable table = job.TableAt(memory.data());
      AlignedFloats copy(table.bytes() / sizeof(float) + 1);
      table.CopyTo(copy.data());
      AlignedFloats sums(table.bytes_of_sums() / sizeof(float) + 1);
      const SquaresArguments arguments = table.ArgumentsAt(copy.data(), sums.data());
      RunSquaresOnHost(arguments);
      EXPECT_EQ(job.Difference(arguments.of_spans), "") << "seed " << seed;
    }
  }
}

TEST(SquaresOnHost_MoreElementsThanAnInt, AreFoundByTheirBlocks) {
  constexpr int64_t kElements = (int64_t{3} << 31) + 5;
  SquaresTable table;
  float nothing = 0;
  table.Add({&nothing, 10});
  table.Add({&nothing, kElements});
  AlignedFloats copy(table.bytes() / sizeof(float) + 1);
  table.CopyTo(copy.data());
  const SquaresArguments arguments = table.ArgumentsAt(copy.data(), nullptr);
  EXPECT_EQ(arguments.blocks, 1 + kElements / kNormBlock + 1);
  const kernels::BlockOfSquares last = kernels::FindBlock(arguments, arguments.blocks - 1);
  EXPECT_EQ(last.span, arguments.spans + 1);
  EXPECT_EQ(last.first, kElements - 5);
  EXPECT_EQ(last.elements, 5);
  const kernels::BlockOfSquares before = kernels::FindBlock(arguments, arguments.blocks - 2);
  EXPECT_EQ(before.elements, kNormBlock);
  const auto place = kernels::PlaceInRow(before, 63, 3);
  EXPECT_EQ(place.first, kElements - 5 - 4);
  EXPECT_EQ(place.left, 4);
}

}  // namespace
}  // namespace optshard::testing
