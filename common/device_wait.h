// What waits for a device: not for use within a step of state that is on it.
#ifndef OPTSHARD_COMMON_DEVICE_WAIT_H_
#define OPTSHARD_COMMON_DEVICE_WAIT_H_

#include <cstddef>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/device_api.h"

namespace optshard {

// Blocks until the device has reached the event's last recording: DEADLINE_EXCEEDED naming the
// device, or the device's error.
absl::Status AwaitReached(DeviceApi& device, const DeviceEvent& event, absl::Time deadline,
                          const Clock& clock);

// Likewise for all that is on the stream now.
absl::Status AwaitStream(DeviceApi& device, void* stream, absl::Time deadline, const Clock& clock);

// Memory of the device becomes zeros. DEADLINE_EXCEEDED where the device has not set it within a
// minute, or its other errors.
absl::Status ZeroNow(DeviceApi& device, void* memory, size_t bytes);

// Memory of the device, which is zeros. RESOURCE_EXHAUSTED, and errors as ZeroNow. Null where it is
// of 0 bytes.
absl::StatusOr<std::shared_ptr<void>> ZeroedOn(DeviceApi& device, size_t bytes);

}  // namespace optshard

#endif  // OPTSHARD_COMMON_DEVICE_WAIT_H_
