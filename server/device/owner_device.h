// What a shard owner needs of the device that its trainer's parameters are on.
#ifndef OPTSHARD_SERVER_DEVICE_OWNER_DEVICE_H_
#define OPTSHARD_SERVER_DEVICE_OWNER_DEVICE_H_

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "common/dataplane/data_plane.h"
#include "common/dataplane/plane_request.h"
#include "common/device_api.h"
#include "server/shard/shard_owner.h"
#include "server/update/executor.h"

namespace optshard {

struct OwnerDevice {
  std::shared_ptr<DeviceApi> device;
  ExecutorFactory make_executor;
  // The plane between the ranks' devices, made of one between their hosts of which nothing was
  // used.
  using MakePlane = std::function<absl::StatusOr<std::unique_ptr<DataPlane>>(
      const PlaneRequest& request, std::unique_ptr<DataPlane> host)>;
  MakePlane make_plane;
};

// Of what makes planes between hosts, what makes those between the ranks' devices.
inline PlaneFactory BetweenDevices(OwnerDevice::MakePlane make, PlaneFactory hosts) {
  return [make = std::move(make), hosts = std::move(hosts)](
             const PlaneRequest& request) -> absl::StatusOr<std::unique_ptr<DataPlane>> {
    absl::StatusOr<std::unique_ptr<DataPlane>> host = hosts(request);
    if (!host.ok()) return host;
    return make(request, *std::move(host));
  };
}

// Of a device as LibTorch names it: "cuda:0". UNIMPLEMENTED, saying what to do, where this build
// has nothing for devices of its kind; FAILED_PRECONDITION where there is no driver or no such
// device.
absl::StatusOr<OwnerDevice> OpenOwnerDevice(const std::string& name);

// Of the device of another process, by its DeviceApi::HardwareId. Errors likewise.
absl::StatusOr<OwnerDevice> FindOwnerDevice(const std::string& hardware_id);

}  // namespace optshard

#endif  // OPTSHARD_SERVER_DEVICE_OWNER_DEVICE_H_
