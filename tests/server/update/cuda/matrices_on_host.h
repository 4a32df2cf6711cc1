// Runs the kernels of averages over rows and columns on the host: block by block, phase by phase,
// thread by thread.
#ifndef OPTSHARD_TESTS_SERVER_UPDATE_CUDA_MATRICES_ON_HOST_H_
#define OPTSHARD_TESTS_SERVER_UPDATE_CUDA_MATRICES_ON_HOST_H_

#include <cstdint>
#include <vector>

#include "server/update/cuda/matrices_body.h"

namespace optshard::testing {

template <typename T>
void DivideOnHost(const MatricesArguments& arguments) {
  for (int64_t division = 0; division < arguments.divisions; ++division) {
    const auto of = kernels::FindRows<T>(arguments, division, 0);
    if (of.are_few) {
      for (int thread = 0; thread < kKernelThreads; ++thread) {
        kernels::DivideFew(kernels::FindRows<T>(arguments, division, thread));
      }
      continue;
    }
    double sum = 0;
    for (int64_t tile = 0; tile * kMatricesTile < of.rows; ++tile) {
      std::vector<T> near(kMatricesTile);
      for (int thread = 0; thread < kKernelThreads; ++thread) {
        kernels::LoadAverages(of, tile, thread, near.data());
      }
      kernels::AddAverages(of, tile, near.data(), sum);
    }
    const double mean = kernels::MeanOfAverages(of, sum);
    for (int thread = 0; thread < kKernelThreads; ++thread) {
      kernels::DivideAverages(of, mean, thread);
    }
  }
}

template <typename T>
void RunMatricesOnHost(MatricesPhase phase, const MatricesArguments& arguments) {
  switch (phase) {
    case MatricesPhase::kMeans:
      for (int64_t line = 0; line < arguments.lines; ++line) kernels::SetMean<T>(arguments, line);
      break;
    case MatricesPhase::kDivide:
      DivideOnHost<T>(arguments);
      break;
    case MatricesPhase::kEstimates:
      for (int64_t tile = 0; tile < arguments.tiles; ++tile) {
        for (int thread = 0; thread < kKernelThreads; ++thread) {
          kernels::SetEstimates<T>(arguments, tile, thread);
        }
      }
      break;
  }
}

}  // namespace optshard::testing

#endif  // OPTSHARD_TESTS_SERVER_UPDATE_CUDA_MATRICES_ON_HOST_H_
