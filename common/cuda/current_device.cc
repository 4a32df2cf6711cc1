#include "common/cuda/current_device.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "common/cuda/cuda_status.h"
#include "common/cuda/driver_function.h"

namespace optshard {
namespace {

// Whether somebody in this process uses the device. True where the driver does not say.
bool HasContext(int device) {
  static const auto state_of = [] {
    decltype(&cuDevicePrimaryCtxGetState) function = nullptr;
    FindDriverFunction("cuDevicePrimaryCtxGetState", &function).IgnoreError();
    return function;
  }();
  unsigned flags = 0;
  int is_active = 1;
  if (state_of != nullptr) static_cast<void>(state_of(device, &flags, &is_active));
  return is_active != 0;
}

}  // namespace

CurrentDevice::CurrentDevice(int device)
    : status_(CudaStatus(cudaGetDevice(&before_), "asking for a device")) {
  if (!status_.ok()) return;
  puts_back_ = before_ != device && HasContext(before_);
  status_ = UseDevice(device);
}

CurrentDevice::~CurrentDevice() {
  if (puts_back_) static_cast<void>(cudaSetDevice(before_));
}

}  // namespace optshard
