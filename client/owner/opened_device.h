// The device that a trainer's parameters are on, for its owner.
#ifndef OPTSHARD_CLIENT_OWNER_OPENED_DEVICE_H_
#define OPTSHARD_CLIENT_OWNER_OPENED_DEVICE_H_

#include "absl/status/statusor.h"
#include "client/owner/trainer_device.h"
#include "common/ids.h"
#include "server/device/owner_device.h"

namespace optshard {

// Of a device that is not the CPU: OpenOwnerDevice, or what this thread's seams have instead
// (client_seams.h).
absl::StatusOr<OwnerDevice> OpenDeviceOf(const TrainerDevice& device, Rank rank);

}  // namespace optshard

#endif  // OPTSHARD_CLIENT_OWNER_OPENED_DEVICE_H_
