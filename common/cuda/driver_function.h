// The functions of CUDA's driver, which is not linked: a program starts without one.
#ifndef OPTSHARD_COMMON_CUDA_DRIVER_FUNCTION_H_
#define OPTSHARD_COMMON_CUDA_DRIVER_FUNCTION_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace optshard {

// "cuMemMap", as it is since CUDA 12. What CudaStatus says, or FAILED_PRECONDITION where the driver
// has none of that name. Thread-safe.
absl::StatusOr<void*> FindDriverFunction(const char* name);

// Likewise, as what it is: FindDriverFunction("cuMemMap", &map).
template <typename Function>
absl::Status FindDriverFunction(const char* name, Function* function) {
  const absl::StatusOr<void*> found = FindDriverFunction(name);
  if (found.ok()) *function = reinterpret_cast<Function>(*found);
  return found.status();
}

}  // namespace optshard

#endif  // OPTSHARD_COMMON_CUDA_DRIVER_FUNCTION_H_
