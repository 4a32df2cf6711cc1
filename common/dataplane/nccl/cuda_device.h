// A GPU as steps and the NCCL data plane use it, through the CUDA runtime.
#ifndef OPTSHARD_COMMON_DATAPLANE_NCCL_CUDA_DEVICE_H_
#define OPTSHARD_COMMON_DATAPLANE_NCCL_CUDA_DEVICE_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/device_api.h"

namespace optshard {

// The device number `device` of those that this process sees: "cuda:0" is 0. Streams are of the
// highest priority, and do not wait for the default stream. Errors as UseDevice: there is no
// driver, or no such device. The calling thread's current device stays.
absl::StatusOr<std::shared_ptr<DeviceApi>> UseCudaDevice(int device);

// The number of the device that has this DeviceApi::HardwareId. FAILED_PRECONDITION where this
// process does not see it, or there is no driver. Uses none of the devices.
absl::StatusOr<int> FindCudaDevice(const std::string& hardware_id);

}  // namespace optshard

#endif  // OPTSHARD_COMMON_DATAPLANE_NCCL_CUDA_DEVICE_H_
