#include "common/cuda/current_device.h"

#include <cuda_runtime_api.h>

#include "common/cuda/cuda_status.h"

namespace optshard {

CurrentDevice::CurrentDevice(int device)
    : status_(CudaStatus(cudaGetDevice(&before_), "asking for a device")) {
  if (status_.ok()) status_ = UseDevice(device);
}

CurrentDevice::~CurrentDevice() { static_cast<void>(cudaSetDevice(before_)); }

}  // namespace optshard
