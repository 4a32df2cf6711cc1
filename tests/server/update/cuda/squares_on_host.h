// Runs the kernels of sums of squares on the host: block by block, phase by phase, thread by
// thread.
#ifndef OPTSHARD_TESTS_SERVER_UPDATE_CUDA_SQUARES_ON_HOST_H_
#define OPTSHARD_TESTS_SERVER_UPDATE_CUDA_SQUARES_ON_HOST_H_

#include <array>
#include <cstdint>
#include <vector>

#include "server/update/cuda/squares_body.h"

namespace optshard::testing {

inline void RunSquaresOnHost(const SquaresArguments& arguments, bool of_spans = true) {
  for (int64_t block = 0; block < arguments.blocks; ++block) {
    std::array<kernels::PartialSquares, kThreadsOfSquares> parts;
    for (int thread = 0; thread < kThreadsOfSquares; ++thread) {
      parts[thread] = kernels::PartOfBlock(arguments, block, thread);
    }
    for (int distance = kThreadsOfSquares / 2; distance > 0; distance /= 2) {
      for (int thread = 0; thread < distance; ++thread) {
        kernels::AddPart(parts[thread + distance], parts[thread]);
      }
    }
    arguments.of_blocks[block] = kernels::SumOfBlock(parts[0]);
  }
  for (int32_t span = 0; of_spans && span < arguments.span_count; ++span) {
    SumOfSquaresOnDevice sum;
    const int64_t blocks = kernels::BlocksOfSpan(arguments.spans[span]);
    for (int64_t tile = 0; tile * kSquaresTile < blocks; ++tile) {
      std::vector<SumOfSquaresOnDevice> near(kSquaresTile);
      for (int thread = 0; thread < kKernelThreads; ++thread) {
        kernels::LoadTile(arguments, span, tile, thread, near.data());
      }
      kernels::AddTile(arguments, span, tile, near.data(), sum);
    }
    arguments.of_spans[span] = sum;
  }
}

}  // namespace optshard::testing

#endif  // OPTSHARD_TESTS_SERVER_UPDATE_CUDA_SQUARES_ON_HOST_H_
