#include "common/cuda/driver_function.h"

#include <cuda_runtime_api.h>

#include "absl/strings/str_cat.h"
#include "common/cuda/cuda_status.h"

namespace optshard {

absl::StatusOr<void*> FindDriverFunction(const char* name) {
  constexpr int kSince = 12000;
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result;
  const cudaError_t error =
      cudaGetDriverEntryPointByVersion(name, &found, kSince, cudaEnableDefault, &result);
  if (error == cudaSuccess && result == cudaDriverEntryPointSuccess) return found;
  absl::Status status = CudaStatus(error, absl::StrCat("looking for ", name));
  if (!status.ok()) return status;
  return absl::FailedPreconditionError(
      absl::StrCat("the NVIDIA driver has no ", name, ": install a newer one"));
}

}  // namespace optshard
