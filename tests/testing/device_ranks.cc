#include "tests/testing/device_ranks.h"

#include "absl/strings/str_cat.h"
#include "client/owner/client_seams.h"
#include "tests/server/shard/engine/fake_device_executor.h"
#include "tests/testing/client_ranks.h"

namespace optshard::testing {

DeviceRanks::DeviceRanks(int world_size) : world_size_(world_size) {
  std::vector<void*> streams;
  for (Rank rank = 0; rank < world_size; ++rank) {
    device_of_.push_back(devices_.Add(absl::StrCat("fake:", rank), absl::StrCat("GPU-", rank)));
    streams_.push_back(*device_of_.back()->NewStream());
    streams.push_back(streams_.back().get());
  }
  torch_ = std::make_unique<FakeTorchDevice>(devices_, streams);
}

std::vector<absl::Status> DeviceRanks::Run(
    const std::function<void(ShardedOptimizerOptions options, c10::Device device)>& body) {
  ClientSeams seams;
  seams.device = [this](const std::string&, Rank rank) {
    OwnerDevice device;
    device.device = device_of_[rank];
    device.make_executor = MakeFakeDeviceExecutor(devices_, device.device, nullptr);
    return absl::StatusOr<OwnerDevice>(std::move(device));
  };
  seams.plane = [this](const PlaneRequest& request, const ReplicaOfRank&) {
    NcclGroup* group = nullptr;
    {
      absl::MutexLock lock(&mutex_);
      std::unique_ptr<NcclGroup>& of_generation = groups_[request.generation];
      if (of_generation == nullptr) {
        of_generation = std::make_unique<NcclGroup>(world_size_, FakeNccl::Options(), devices_);
      }
      group = of_generation.get();
    }
    return group->Make(group->OptionsOf(request.rank, device_of_[request.rank]));
  };
  return RunServedRanksWith(seams, world_size_, [&body](ShardedOptimizerOptions options) {
    const c10::Device device = FakeTorchDevice::At(options.rank);
    body(std::move(options), device);
  });
}

}  // namespace optshard::testing
