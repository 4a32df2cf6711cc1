// Runs operations on memory of the host as a step on a device does: through memory of a device, on
// a stream. So one conformance suite is for planes of both kinds of memory.
#ifndef OPTSHARD_TESTS_COMMON_DATAPLANE_DEVICE_MEMORY_PLANE_H_
#define OPTSHARD_TESTS_COMMON_DATAPLANE_DEVICE_MEMORY_PLANE_H_

#include <memory>

#include "common/dataplane/data_plane.h"
#include "common/device_api.h"
#include "tests/testing/fake_device.h"

namespace optshard {

// For an operation in the context of the host, the inputs are copied to the device on a stream, the
// operation of `plane` is started there before that copy has run, and the outputs are copied back
// on the stream, behind the ticket's OrderOn. A ticket's Wait is that of `plane`, and then waits
// for the stream. Gathers stay on the host where `gathers_on_device` is false.
std::unique_ptr<DataPlane> OnDeviceMemory(std::unique_ptr<DataPlane> plane,
                                          const testing::FakeDevices& devices,
                                          std::shared_ptr<DeviceApi> device,
                                          bool gathers_on_device);

}  // namespace optshard

#endif  // OPTSHARD_TESTS_COMMON_DATAPLANE_DEVICE_MEMORY_PLANE_H_
