// What the benchmarks of GPUs share.
#ifndef OPTSHARD_BENCHMARKS_GPU_MEASURING_H_
#define OPTSHARD_BENCHMARKS_GPU_MEASURING_H_

#include <cuda_runtime_api.h>

#include <algorithm>
#include <vector>

#include "absl/status/status.h"
#include "common/cuda/cuda_status.h"
#include "common/fatal.h"

namespace optshard {

// End the process with the error.
inline void Check(const absl::Status& status) {
  if (!status.ok()) Fatal("%s", status.ToString());
}
inline void Check(cudaError_t error) { Check(CudaStatus(error, "measuring")); }

// Of at least one value.
inline double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

}  // namespace optshard

#endif  // OPTSHARD_BENCHMARKS_GPU_MEASURING_H_
