// Devices in one process, for tests: their streams are in-order queues of work that runs when
// somebody looks (an event is asked for, or RunWhatCanRun is called), on the thread that looks. So
// nothing runs earlier than a test allows. Streams have their turns in an order that changes from
// one look to the next, so that work of two streams that is not ordered comes in either order;
// which one when is chosen by --gtest_random_seed with --gtest_shuffle.
//
//   FakeDevices devices;
//   auto device = devices.Add("cuda:0", "GPU-0");      // a DeviceApi
//   auto stream = device->NewStream();
//   devices.Enqueue(stream->get(), [&] { return gate_is_open; });
//
// Device memory is host memory. Each device has a default stream (null), for its own calls.
#ifndef OPTSHARD_TESTS_TESTING_FAKE_DEVICE_H_
#define OPTSHARD_TESTS_TESTING_FAKE_DEVICE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "common/device_api.h"

namespace optshard::testing {

class FakeDevicesState;

// Thread-safe. Copies are the same devices. Devices and what they made may outlive it.
class FakeDevices {
 public:
  // Of a stream. Called until it returns true; then the next work of the stream has its turn. It
  // calls nothing of these classes.
  using Work = std::function<bool()>;

  FakeDevices();

  std::shared_ptr<DeviceApi> Add(std::string name, std::string identity);

  void Enqueue(void* stream, Work work);
  void EnqueueCopy(void* stream, void* to, const void* from, size_t bytes);
  void RunWhatCanRun();

  // Of the calling thread, on all devices: how often it asked whether the device had reached an
  // event, or did what makes a host wait for a device: allocated or freed memory, or made a stream.
  int64_t HostSynchronisations() const;

  // What a driver says after an illegal access: later calls of all devices return it.
  void Fail(const absl::Status& failure);

 private:
  std::shared_ptr<FakeDevicesState> state_;
};

}  // namespace optshard::testing

#endif  // OPTSHARD_TESTS_TESTING_FAKE_DEVICE_H_
