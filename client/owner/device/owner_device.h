// What an embedded shard owner needs of the device that its trainer's parameters are on.
#ifndef OPTSHARD_CLIENT_OWNER_DEVICE_OWNER_DEVICE_H_
#define OPTSHARD_CLIENT_OWNER_DEVICE_OWNER_DEVICE_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/dataplane/data_plane.h"
#include "common/dataplane/plane_request.h"
#include "common/device_api.h"
#include "server/update/executor.h"

namespace optshard {

struct OwnerDevice {
  std::shared_ptr<DeviceApi> device;
  ExecutorFactory make_executor;
  // The plane between the ranks' devices, made of one between their hosts of which nothing was
  // used.
  std::function<absl::StatusOr<std::unique_ptr<DataPlane>>(const PlaneRequest& request,
                                                           std::unique_ptr<DataPlane> host)>
      make_plane;
};

// Of a device as LibTorch names it: "cuda:0". UNIMPLEMENTED, saying what to do, where this build
// has nothing for devices of its kind; FAILED_PRECONDITION where there is no driver or no such
// device.
absl::StatusOr<OwnerDevice> OpenOwnerDevice(const std::string& name);

}  // namespace optshard

#endif  // OPTSHARD_CLIENT_OWNER_DEVICE_OWNER_DEVICE_H_
