// An executor of a fake device: the host's updates, as work on a stream.
#ifndef OPTSHARD_TESTS_SERVER_SHARD_ENGINE_FAKE_DEVICE_EXECUTOR_H_
#define OPTSHARD_TESTS_SERVER_SHARD_ENGINE_FAKE_DEVICE_EXECUTOR_H_

#include <functional>
#include <memory>
#include <string>

#include "common/device_api.h"
#include "server/update/executor.h"
#include "tests/testing/fake_device.h"

namespace optshard::testing {

// Whether the update of the Start of this number, counted from 0, may run; asked again and again,
// on any thread.
using MayUpdate = std::function<bool(int start)>;

// While it lives, no fake device has kernels of the rule. One at a time; made before the executors
// that it is for.
class WithoutKernels {
 public:
  explicit WithoutKernels(const std::string& rule);
  ~WithoutKernels();
  WithoutKernels(const WithoutKernels&) = delete;
  WithoutKernels& operator=(const WithoutKernels&) = delete;
};

// Reads nothing of the tasks that lies on the host once Start has returned.
ExecutorFactory MakeFakeDeviceExecutor(const FakeDevices& devices,
                                       const std::shared_ptr<DeviceApi>& device,
                                       const MayUpdate& may_update);

}  // namespace optshard::testing

#endif  // OPTSHARD_TESTS_SERVER_SHARD_ENGINE_FAKE_DEVICE_EXECUTOR_H_
