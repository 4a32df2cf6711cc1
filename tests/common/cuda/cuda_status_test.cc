// Errors of the CUDA runtime as statuses, where there need be no device.
#include "common/cuda/cuda_status.h"

#include <cuda_runtime_api.h>

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "gtest/gtest.h"

namespace optshard {
namespace {

using absl::StatusCode;

struct ErrorCase {
  cudaError_t error;
  StatusCode code;
  const char* text;  // a part of the message
};

class CudaStatusOfErrorTest : public ::testing::TestWithParam<ErrorCase> {};

TEST_P(CudaStatusOfErrorTest, Error_CodeAndWhatToDo) {
  const absl::Status status = CudaStatus(GetParam().error, "enqueueing an update");
  EXPECT_EQ(status.code(), GetParam().code) << status;
  EXPECT_TRUE(absl::StartsWith(status.message(), "enqueueing an update: ")) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), GetParam().text)) << status;
}

constexpr ErrorCase kErrors[] = {
    // The device has failed.
    {cudaErrorECCUncorrectable, StatusCode::kDataLoss, "load a checkpoint"},
    {cudaErrorIllegalAddress, StatusCode::kDataLoss, "load a checkpoint"},
    {cudaErrorMisalignedAddress, StatusCode::kDataLoss, "load a checkpoint"},
    {cudaErrorInvalidAddressSpace, StatusCode::kDataLoss, "load a checkpoint"},
    {cudaErrorInvalidPc, StatusCode::kDataLoss, "load a checkpoint"},
    {cudaErrorIllegalInstruction, StatusCode::kDataLoss, "load a checkpoint"},
    {cudaErrorHardwareStackError, StatusCode::kDataLoss, "load a checkpoint"},
    {cudaErrorLaunchFailure, StatusCode::kDataLoss, "load a checkpoint"},
    {cudaErrorLaunchTimeout, StatusCode::kDataLoss, "load a checkpoint"},
    {cudaErrorAssert, StatusCode::kDataLoss, "load a checkpoint"},
    {cudaErrorNvlinkUncorrectable, StatusCode::kDataLoss, "load a checkpoint"},
    {cudaErrorContained, StatusCode::kDataLoss, "load a checkpoint"},
    // The machine has not what is needed.
    {cudaErrorInsufficientDriver, StatusCode::kFailedPrecondition, "NVIDIA driver"},
    {cudaErrorStubLibrary, StatusCode::kFailedPrecondition, "NVIDIA driver"},
    {cudaErrorNoDevice, StatusCode::kFailedPrecondition, "CUDA_VISIBLE_DEVICES"},
    {cudaErrorInvalidDevice, StatusCode::kFailedPrecondition, "CUDA_VISIBLE_DEVICES"},
    {cudaErrorNoKernelImageForDevice, StatusCode::kFailedPrecondition, "compute capability 8.0"},
    // Any other, by its name.
    {cudaErrorInvalidValue, StatusCode::kInternal, "(cudaErrorInvalidValue)"},
    {cudaErrorMemoryAllocation, StatusCode::kInternal, "(cudaErrorMemoryAllocation)"},
    {cudaErrorUnknown, StatusCode::kInternal, "(cudaErrorUnknown)"},
};

INSTANTIATE_TEST_SUITE_P(Errors, CudaStatusOfErrorTest, ::testing::ValuesIn(kErrors),
                         [](const auto& info) {
                           return std::string(cudaGetErrorName(info.param.error));
                         });

TEST(CudaStatusTest, Success_Ok) { EXPECT_TRUE(CudaStatus(cudaSuccess, "anything").ok()); }

TEST(CudaAllocationStatusTest, NoMemory_NeedIsSaid) {
  const absl::Status status =
      CudaAllocationStatus(cudaErrorMemoryAllocation, size_t{3} << 29, "allocating state");
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted) << status;
  EXPECT_TRUE(absl::StartsWith(status.message(), "allocating state: 1.50 GiB are needed"))
      << status;
}

TEST(CudaAllocationStatusTest, FailedDevice_DataLoss) {
  const absl::Status status =
      CudaAllocationStatus(cudaErrorECCUncorrectable, 1, "allocating state");
  EXPECT_EQ(status.code(), StatusCode::kDataLoss) << status;
}

TEST(UseDeviceTest, NoDriver_RefusedWithWhatToDo) {
  int driver = 0;
  ASSERT_EQ(cudaDriverGetVersion(&driver), cudaSuccess);
  if (driver != 0) {
    GTEST_SKIP() << "this machine has an NVIDIA driver: what is said without one cannot be seen";
  }
  // The same each time.
  for (int call = 0; call < 2; ++call) {
    const absl::Status status = UseDevice(0);
    EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition) << status;
    EXPECT_EQ(status.message(),
              "using device cuda:0: there is no NVIDIA driver on this machine: install one, or use "
              "state on CPUs");
  }
}

}  // namespace
}  // namespace optshard
