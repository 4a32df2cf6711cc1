// The device that a hosted rank's memory is on.
#ifndef OPTSHARD_SERVER_NODE_RANK_DEVICE_H_
#define OPTSHARD_SERVER_NODE_RANK_DEVICE_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/attach/attachment.h"
#include "common/link/segment_place.h"
#include "server/device/owner_device.h"
#include "server/node/rank_places.h"

namespace optshard {

// FindOwnerDevice, or a test's. Null: there are no devices.
using FindDevice = std::function<absl::StatusOr<OwnerDevice>(const std::string& hardware_id)>;

// That of a rank whose request names one. UNIMPLEMENTED where there are none, INVALID_ARGUMENT
// where the parameters are on devices of another kind, and what `find` returns.
absl::StatusOr<OwnerDevice> DeviceOf(const AttachRequest& request, const FindDevice& find);

// Of a rank with a device or without. Errors likewise.
absl::StatusOr<RankPlaces> PlacesOf(const AttachRequest& request,
                                    const std::shared_ptr<const SegmentPlace>& on_host,
                                    const FindDevice& find);

}  // namespace optshard

#endif  // OPTSHARD_SERVER_NODE_RANK_DEVICE_H_
