#include "common/cuda/cuda_status.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace optshard {
namespace {

std::string Text(cudaError_t error) {
  return absl::StrFormat("%s (%s)", cudaGetErrorString(error), cudaGetErrorName(error));
}

std::string Version(int version) {
  return absl::StrFormat("%d.%d", version / 1000, version % 1000 / 10);
}

absl::Status TooOldDriver(absl::string_view what) {
  int driver = 0;
  cudaDriverGetVersion(&driver);
  if (driver == 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        what, ": there is no NVIDIA driver on this machine: install one, or use state on CPUs"));
  }
  return absl::FailedPreconditionError(absl::StrFormat(
      "%s: the NVIDIA driver supports CUDA %s, and this program needs %s: install a newer driver",
      what, Version(driver), Version(CUDART_VERSION)));
}

// After which nothing works any more in the process.
bool HasFailed(cudaError_t error) {
  switch (error) {
    case cudaErrorECCUncorrectable:
    case cudaErrorIllegalAddress:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorIllegalInstruction:
    case cudaErrorHardwareStackError:
    case cudaErrorLaunchFailure:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorContained:
      return true;
    default:
      return false;
  }
}

}  // namespace

absl::Status CudaStatus(cudaError_t error, absl::string_view what) {
  if (error == cudaSuccess) return absl::OkStatus();
  cudaGetLastError();
  if (HasFailed(error)) {
    return absl::DataLossError(
        absl::StrFormat("%s: the device has failed: %s. What lies in its memory is not to be used: "
                        "start the process "
                        "again, and load a checkpoint",
                        what, Text(error)));
  }
  switch (error) {
    case cudaErrorInsufficientDriver:
    case cudaErrorStubLibrary:
      return TooOldDriver(what);
    case cudaErrorNoDevice:
    case cudaErrorInvalidDevice: {
      int devices = 0;
      cudaGetDeviceCount(&devices);
      cudaGetLastError();
      return absl::FailedPreconditionError(absl::StrFormat(
          "%s: %s: this process sees %d devices (CUDA_VISIBLE_DEVICES may hide some)", what,
          Text(error), devices));
    }
    case cudaErrorNoKernelImageForDevice:
      return absl::FailedPreconditionError(
          absl::StrFormat("%s: %s: there is machine code for GPUs from the Ampere generation "
                          "(compute capability 8.0) "
                          "on, and this one is older",
                          what, Text(error)));
    default:
      return absl::InternalError(absl::StrCat(what, ": ", Text(error)));
  }
}

absl::Status CudaAllocationStatus(cudaError_t error, size_t bytes, absl::string_view what) {
  if (error != cudaErrorMemoryAllocation) return CudaStatus(error, what);
  cudaGetLastError();
  size_t free = 0;
  size_t total = 0;
  cudaMemGetInfo(&free, &total);
  constexpr double kGibibyte = 1 << 30;
  return absl::ResourceExhaustedError(
      absl::StrFormat("%s: %.2f GiB are needed, and %.2f of the device's %.2f GiB are free", what,
                      static_cast<double>(bytes) / kGibibyte, static_cast<double>(free) / kGibibyte,
                      static_cast<double>(total) / kGibibyte));
}

absl::Status UseDevice(int device) {
  const std::string what = absl::StrFormat("using device cuda:%d", device);
  int devices = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&devices); error != cudaSuccess) {
    return CudaStatus(error, what);
  }
  if (device < 0 || device >= devices) return CudaStatus(cudaErrorInvalidDevice, what);
  return CudaStatus(cudaSetDevice(device), what);
}

}  // namespace optshard
