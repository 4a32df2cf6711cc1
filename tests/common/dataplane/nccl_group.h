// Ranks with a fake device each, connected over the fake NCCL: what NCCL planes are tested with.
#ifndef OPTSHARD_TESTS_COMMON_DATAPLANE_NCCL_GROUP_H_
#define OPTSHARD_TESTS_COMMON_DATAPLANE_NCCL_GROUP_H_

#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/dataplane/nccl/nccl_plane.h"
#include "tests/common/dataplane/plane_group.h"
#include "tests/testing/fake_device.h"
#include "tests/testing/fake_nccl.h"
#include "tests/testing/fake_plane.h"
#include "tests/testing/fake_rendezvous.h"

namespace optshard {

// The ranks of one generation. Thread-safe.
class NcclGroup {
 public:
  explicit NcclGroup(int world_size, const testing::FakeNccl::Options& options = {},
                     testing::FakeDevices devices = {})
      : world_size_(world_size),
        devices_(std::move(devices)),
        nccl_(devices_, options),
        hosts_(HubOptions(world_size)) {}

  // With "cuda:R" for rank R.
  NcclPlaneOptions OptionsOf(Rank rank) {
    return OptionsOf(rank, devices_.Add(absl::StrCat("cuda:", rank), absl::StrCat("GPU-", rank)));
  }

  NcclPlaneOptions OptionsOf(Rank rank, std::shared_ptr<DeviceApi> device) {
    NcclPlaneOptions options;
    options.rank = rank;
    options.world_size = world_size_;
    options.generation = 7;
    options.rendezvous = &rendezvous_;
    options.deadline = FarDeadline();
    options.nccl = nccl_.MakeApi(rank);
    options.device = std::move(device);
    options.reduce_window_bytes = size_t{1} << 20;
    options.watch_interval = absl::Milliseconds(1);
    return options;
  }

  absl::StatusOr<std::unique_ptr<DataPlane>> Make(const NcclPlaneOptions& options) {
    return NcclPlane::Create(options, hosts_.MakePlane(options.rank));
  }

  testing::FakeDevices& devices() { return devices_; }
  testing::FakeNccl& nccl() { return nccl_; }
  testing::FakeHub& hosts() { return hosts_; }

 private:
  static testing::FakeHub::Options HubOptions(int world_size) {
    testing::FakeHub::Options options;
    options.world_size = world_size;
    options.mode = testing::FakeHub::Mode::kDelayed;
    return options;
  }

  const int world_size_;
  testing::FakeDevices devices_;
  testing::FakeNccl nccl_;
  testing::FakeHub hosts_;
  testing::FakeRendezvous rendezvous_;
};

}  // namespace optshard

#endif  // OPTSHARD_TESTS_COMMON_DATAPLANE_NCCL_GROUP_H_
