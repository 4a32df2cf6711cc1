// The options of the NCCL plane.
#ifndef OPTSHARD_COMMON_DATAPLANE_NCCL_NCCL_PLANE_OPTIONS_H_
#define OPTSHARD_COMMON_DATAPLANE_NCCL_NCCL_PLANE_OPTIONS_H_

#include <cstddef>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/dataplane/nccl/nccl_api.h"
#include "common/dataplane/plane_request.h"
#include "common/device_api.h"

namespace optshard {

struct DeviceRange {
  void* data = nullptr;
  size_t bytes = 0;
};

struct NcclPlaneOptions : PlaneRequest {
  // Where a rank has none, the error is given here: all ranks are told it, and none waits.
  absl::StatusOr<std::shared_ptr<NcclApi>> nccl = absl::UnknownError("no NCCL was given");
  absl::StatusOr<std::shared_ptr<DeviceApi>> device = absl::UnknownError("no device was given");

  // Reduce sums in the plan's order, as the DataPlane promises. False: NCCL sums in an order of its
  // own, in the type of the gradients, where all ranks are members. That moves fewer bytes to the
  // owner and gives bits that nothing else gives (docs/determinism.md). The same on all ranks.
  bool deterministic = true;

  // Device memory into which contributions are received, allocated when the plane is made. A bucket
  // for which it is too small is reduced in pieces. At least 4 KiB for each other rank. The same on
  // all ranks.
  size_t reduce_window_bytes = size_t{64} << 20;

  // Parameters and gradients, for NCCL to use in place. They stay allocated as long as the plane.
  std::vector<DeviceRange> registered;

  // How long an operation for which no thread waits may take, from its call. It may be behind other
  // work of the caller's stream. Also how long NCCL may take to enqueue one: the first ones connect
  // to their peers.
  absl::Duration operation_timeout = absl::Minutes(10);

  // How often the plane's thread looks whether NCCL or the host plane has lost a peer.
  absl::Duration watch_interval = absl::Milliseconds(20);

  // How long the host plane may take to find out whom NCCL has lost, after which nobody is named.
  absl::Duration naming_time = absl::Seconds(2);

  // How long a failed call waits for NCCL to let go of the device.
  absl::Duration abort_grace = absl::Seconds(1);
};

}  // namespace optshard

#endif  // OPTSHARD_COMMON_DATAPLANE_NCCL_NCCL_PLANE_OPTIONS_H_
