#include "client/owner/opened_device.h"

#include "client/owner/client_seams.h"

namespace optshard {

absl::StatusOr<OwnerDevice> OpenDeviceOf(const TrainerDevice& device, Rank rank) {
  const ClientSeams* const seams = ScopedClientSeams::Current();
  return seams != nullptr && seams->device != nullptr ? seams->device(device.name, rank)
                                                      : OpenOwnerDevice(device.name);
}

}  // namespace optshard
