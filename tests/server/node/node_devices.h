// Fake devices for the ranks of a shard server and for their trainers, which may be other
// processes: a device's memory that is shared is one, whoever has it mapped.
#ifndef OPTSHARD_TESTS_SERVER_NODE_NODE_DEVICES_H_
#define OPTSHARD_TESTS_SERVER_NODE_NODE_DEVICES_H_

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "client/owner/attached_owner.h"
#include "common/device_api.h"
#include "common/ids.h"
#include "server/device/owner_device.h"
#include "tests/common/dataplane/nccl_group.h"
#include "tests/server/shard/engine/fake_device_executor.h"
#include "tests/testing/fake_device.h"

namespace optshard::testing {

// Of the server's end. One for each rank, connected over a fake NCCL. Thread-safe.
class ServerDevices {
 public:
  explicit ServerDevices(int world_size) : world_size_(world_size) {}

  // As NodeOwners::Options::find_device; valid as long as this.
  absl::StatusOr<OwnerDevice> Find(const std::string& hardware_id);

  // Of updates on the devices that are found from now on (fake_device_executor.h).
  void SetMayUpdate(MayUpdate may_update) { may_update_ = std::move(may_update); }

 private:
  absl::StatusOr<std::unique_ptr<DataPlane>> MakePlane(const std::shared_ptr<DeviceApi>& device,
                                                       const PlaneRequest& request,
                                                       std::unique_ptr<DataPlane> host);

  const int world_size_;
  MayUpdate may_update_;
  FakeDevices devices_;
  absl::Mutex mutex_;
  std::map<Generation, std::unique_ptr<NcclGroup>> groups_ ABSL_GUARDED_BY(mutex_);
};

// Of a trainer's end: the rank's device.
struct TrainerDeviceOfRank {
  explicit TrainerDeviceOfRank(Rank rank);

  // Its parameters are on the device.
  void Use(AttachedOwner::Options* options, bool state_on_host = false) const;

  FakeDevices devices;
  std::shared_ptr<DeviceApi> device;
  std::shared_ptr<void> stream;
};

}  // namespace optshard::testing

#endif  // OPTSHARD_TESTS_SERVER_NODE_NODE_DEVICES_H_
