// LibTorch's tensors on a fake device ("fake:0", and others by index): their memory is the host's,
// and what is done to them runs in the thread that asks for it, which first waits until all that is
// on the device's stream has run.
//
//   const FakeTorchDevice torch(devices, {stream0, stream1});
//   at::Tensor tensor = at::zeros({2}, FakeTorchDevice::At(0));
//
// One at a time in a process.
#ifndef OPTSHARD_TESTS_TESTING_FAKE_TORCH_DEVICE_H_
#define OPTSHARD_TESTS_TESTING_FAKE_TORCH_DEVICE_H_

#include <c10/core/Device.h>

#include <vector>

#include "tests/testing/fake_device.h"

namespace optshard::testing {

class FakeTorchDevice {
 public:
  // From now on until its end the current streams are these, by device, of `devices`.
  FakeTorchDevice(FakeDevices devices, std::vector<void*> streams);
  ~FakeTorchDevice();
  FakeTorchDevice(const FakeTorchDevice&) = delete;
  FakeTorchDevice& operator=(const FakeTorchDevice&) = delete;

  static c10::Device At(int index);
};

}  // namespace optshard::testing

#endif  // OPTSHARD_TESTS_TESTING_FAKE_TORCH_DEVICE_H_
