#include "tests/server/node/node_devices.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/dataplane/nccl/nccl_plane.h"
#include "tests/server/node/node_trainer.h"

namespace optshard::testing {

absl::StatusOr<OwnerDevice> ServerDevices::Find(const std::string& hardware_id) {
  if (!absl::StartsWith(hardware_id, "GPU-")) {
    return absl::FailedPreconditionError(absl::StrCat("this process does not see ", hardware_id));
  }
  OwnerDevice found;
  // Not as it is called where its trainer is.
  found.device = devices_.Add("fake:7", hardware_id);
  found.make_executor = MakeFakeDeviceExecutor(devices_, found.device, may_update_);
  found.make_plane = [this, device = found.device](const PlaneRequest& request,
                                                   std::unique_ptr<DataPlane> host) {
    return MakePlane(device, request, std::move(host));
  };
  return found;
}

absl::StatusOr<std::unique_ptr<DataPlane>> ServerDevices::MakePlane(
    const std::shared_ptr<DeviceApi>& device, const PlaneRequest& request,
    std::unique_ptr<DataPlane> host) {
  NcclPlaneOptions options;
  {
    absl::MutexLock lock(&mutex_);
    std::unique_ptr<NcclGroup>& group = groups_[request.generation];
    if (group == nullptr) {
      group = std::make_unique<NcclGroup>(world_size_, FakeNccl::Options(), devices_);
    }
    options = group->OptionsOf(request.rank, device);
  }
  static_cast<PlaneRequest&>(options) = request;
  return NcclPlane::Create(options, std::move(host));
}

TrainerDeviceOfRank::TrainerDeviceOfRank(Rank rank)
    : device(devices.Add(absl::StrCat("fake:", rank), absl::StrCat("GPU-", rank))),
      stream(*device->NewStream()) {}

void TrainerDeviceOfRank::Use(AttachedOwner::Options* options, bool state_on_host) const {
  options->device = device;
  options->hardware_id = *device->HardwareId();
  options->current_stream = [stream = stream] { return stream.get(); };
  options->state_on_host = state_on_host;
  MoveTo(device->kind(), &options->spec);
}

}  // namespace optshard::testing
