// Runs the kernels between numbers and bfloat16 on the host: block by block, phase by phase, thread
// by thread.
#ifndef OPTSHARD_TESTS_SERVER_UPDATE_CUDA_HALVES_ON_HOST_H_
#define OPTSHARD_TESTS_SERVER_UPDATE_CUDA_HALVES_ON_HOST_H_

#include <cstdint>

#include "server/update/cuda/halves_body.h"

namespace optshard::testing {

template <typename T>
void RunHalvesOnHost(HalvesPhase phase, const HalvesArguments& arguments) {
  for (int64_t tile = 0; tile < arguments.tiles; ++tile) {
    const kernels::TileOfHalves at = kernels::FindTile(arguments, tile);
    const double factor = phase == HalvesPhase::kScale ? kernels::FactorOf(at) : 0;
    for (int thread = 0; thread < kKernelThreads; ++thread) {
      if (phase == HalvesPhase::kScale) {
        kernels::SetHalves<T>(at, factor, thread);
      } else {
        kernels::SetNumbers<T>(at, thread);
      }
    }
  }
}

}  // namespace optshard::testing

#endif  // OPTSHARD_TESTS_SERVER_UPDATE_CUDA_HALVES_ON_HOST_H_
