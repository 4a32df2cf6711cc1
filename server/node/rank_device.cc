#include "server/node/rank_device.h"

#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "common/link/device_segments.h"
#include "server/shard/shard_owner.h"

namespace optshard {

absl::StatusOr<OwnerDevice> DeviceOf(const AttachRequest& request, const FindDevice& find) {
  absl::StatusOr<OwnerDevice> device =
      find == nullptr
          ? absl::UnimplementedError(absl::StrCat(
                "this shard server has no devices, and its parameters are on ", request.device))
          : find(request.device);
  absl::Status usable = device.status();
  if (usable.ok()) usable = CheckSupported(request.spec.space, device->device.get());
  if (usable.ok()) return device;
  return errors::WithContext(
      usable, absl::StrCat("rank ", request.rank, " of optimizer \"", request.optimizer, "\""));
}

absl::StatusOr<RankPlaces> PlacesOf(const AttachRequest& request,
                                    const std::shared_ptr<const SegmentPlace>& on_host,
                                    const FindDevice& find) {
  RankPlaces places = RankPlaces::On(on_host);
  if (request.device.empty()) return places;
  const absl::StatusOr<OwnerDevice> device = DeviceOf(request, find);
  if (!device.ok()) return device.status();
  places.replica = std::make_shared<DeviceSegments>(device->device);
  if (!request.state_on_host) places.slots = places.replica;
  return places;
}

}  // namespace optshard
