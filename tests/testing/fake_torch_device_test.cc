#include "tests/testing/fake_torch_device.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <memory>

namespace optshard::testing {
namespace {

class FakeTorchDeviceTest : public ::testing::Test {
 protected:
  FakeDevices devices_;
  const std::shared_ptr<DeviceApi> device_ = devices_.Add("fake:0", "GPU-0");
  const std::shared_ptr<void> stream_ = *device_->NewStream();
  const FakeTorchDevice torch_{devices_, {stream_.get()}};
};

TEST_F(FakeTorchDeviceTest, Tensors_AreThereAndHaveTheStream) {
  const at::Tensor tensor = at::full({3}, 2.0, FakeTorchDevice::At(0));
  EXPECT_EQ(tensor.device().str(), "fake:0");
  EXPECT_EQ(tensor.cpu().sum().item<double>(), 6);
  const at::Tensor parts = at::full({3}, 2.0).to(FakeTorchDevice::At(1));
  EXPECT_EQ(parts.device().str(), "fake:1");
  EXPECT_EQ(parts.sum().item<double>(), 6);
}

TEST_F(FakeTorchDeviceTest, Backward_GivesGradientsThere) {
  const at::Tensor parameter = at::full({3}, 2.0, FakeTorchDevice::At(0)).set_requires_grad(true);
  parameter.mul(parameter).sum().backward();
  ASSERT_TRUE(parameter.grad().defined());
  EXPECT_EQ(parameter.grad().device().str(), "fake:0");
  EXPECT_EQ(parameter.grad().sum().item<double>(), 12);
}

TEST_F(FakeTorchDeviceTest, WhatIsOnTheStream_IsBefore) {
  const at::Tensor tensor = at::full({1}, 2.0, FakeTorchDevice::At(0));
  devices_.Enqueue(stream_.get(), [&] {
    *static_cast<float*>(tensor.data_ptr()) = 5;
    return true;
  });
  EXPECT_EQ(tensor.item<double>(), 5);
}

}  // namespace
}  // namespace optshard::testing
