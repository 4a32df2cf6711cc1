// Errors of the CUDA runtime as statuses.
#ifndef OPTSHARD_COMMON_CUDA_CUDA_STATUS_H_
#define OPTSHARD_COMMON_CUDA_CUDA_STATUS_H_

#include <cuda_runtime_api.h>

#include <cstddef>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace optshard {

// OK, or what failed and what to do: FAILED_PRECONDITION where there is no driver, one that is too
// old, no such device, or no machine code for it; DATA_LOSS where the device has failed (an ECC
// error, a fault of a kernel): what lies in its memory is not to be used again, and the process has
// to be started anew; INTERNAL for any other. `what` was being done: "enqueueing an update". Clears
// an error that is not sticky. Thread-safe.
absl::Status CudaStatus(cudaError_t error, absl::string_view what);

// RESOURCE_EXHAUSTED with what was wanted and what is free; otherwise as CudaStatus.
absl::Status CudaAllocationStatus(cudaError_t error, size_t bytes, absl::string_view what);

// Whether the current process can use that device. OK, or a status of CudaStatus that says what is
// missing. Makes it the calling thread's current one.
absl::Status UseDevice(int device);

}  // namespace optshard

#endif  // OPTSHARD_COMMON_CUDA_CUDA_STATUS_H_
