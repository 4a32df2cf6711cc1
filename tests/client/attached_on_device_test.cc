// Optimizers of parameters on devices, attached to a shard server: the bits of the same job on
// CPUs.
#include <c10/core/Device.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/owner/client_seams.h"
#include "common/dataplane/gloo/gloo_loader.h"
#include "tests/client/attached_options.h"
#include "tests/client/device_jobs.h"
#include "tests/server/node/node_devices.h"
#include "tests/testing/client_ranks.h"
#include "tests/testing/fake_torch_device.h"

namespace optshard::testing {
namespace {

using ::testing::Each;

using Body = std::function<std::string(ShardedOptimizerOptions options, c10::Device device)>;

// The devices as the trainers see them, one for each rank.
class TrainersDevices {
 public:
  explicit TrainersDevices(int world_size) {
    std::vector<void*> streams;
    for (Rank rank = 0; rank < world_size; ++rank) {
      device_of_.push_back(devices_.Add(absl::StrCat("fake:", rank), absl::StrCat("GPU-", rank)));
      streams_.push_back(*device_of_.back()->NewStream());
      streams.push_back(streams_.back().get());
    }
    torch_ = std::make_unique<FakeTorchDevice>(devices_, streams);
  }

  absl::StatusOr<OwnerDevice> Open(Rank rank) {
    OwnerDevice device;
    device.device = device_of_[rank];
    return device;
  }

 private:
  FakeDevices devices_;
  std::vector<std::shared_ptr<DeviceApi>> device_of_;  // by rank
  std::vector<std::shared_ptr<void>> streams_;         // likewise
  std::unique_ptr<FakeTorchDevice> torch_;
};

// What `body` returns on every rank.
std::vector<std::string> OnDevices(int world_size, const std::string& state_device,
                                   const Body& body) {
  TrainersDevices trainers(world_size);
  ServerDevices server(world_size);
  std::vector<std::string> results(world_size);
  const auto run = [&](ShardedOptimizerOptions options) {
    ClientSeams seams;
    seams.device = [&](const std::string&, Rank rank) { return trainers.Open(rank); };
    const ScopedClientSeams scoped(seams);
    options.state_device = state_device;
    const c10::Device device = FakeTorchDevice::At(options.rank);
    std::string& result = results[options.rank];
    result = body(std::move(options), device);
  };
  EXPECT_THAT(RunServedAttached(world_size, run, nullptr,
                                [&](NodeOwners::Options* options) {
                                  options->find_device = [&](const std::string& id) {
                                    return server.Find(id);
                                  };
                                }),
              Each(absl::OkStatus()));
  return results;
}

void ExpectAlike(const Body& body) {
  for (const int world_size : {1, 2}) {
    // Votes travel over it where parameters are on devices.
    if (world_size > 1 && !GlooIsIsolated()) continue;
    std::vector<std::string> on_hosts(world_size);
    EXPECT_THAT(RunServedRanks(world_size,
                               [&](const ShardedOptimizerOptions& options) {
                                 on_hosts[options.rank] = body(options, c10::kCPU);
                               }),
                Each(absl::OkStatus()));
    for (const std::string state_device : {"", "cpu"}) {
      SCOPED_TRACE(absl::StrCat(world_size, " ranks, state_device \"", state_device, "\""));
      const std::vector<std::string> on_devices = OnDevices(world_size, state_device, body);
      for (int rank = 0; rank < world_size; ++rank) {
        EXPECT_FALSE(on_hosts[rank].empty());
        EXPECT_TRUE(on_hosts[rank] == on_devices[rank]) << "rank " << rank;
      }
    }
  }
}

TEST(AttachedOnDeviceTest, Steps_HaveTheBitsOfTheCpu) {
  for (const DeviceWay& way : DeviceWays()) {
    // A shard server has no tensors but those in its memory.
    if (way.view == BucketView::kOff) continue;
    SCOPED_TRACE(way.name);
    ExpectAlike([&](const ShardedOptimizerOptions& options, c10::Device device) {
      return TakeSteps(way, options, device);
    });
  }
}

TEST(AttachedOnDeviceTest, StateIsSetAndLoadedAndValuesRefreshed) { ExpectAlike(ChangeState); }

TEST(AttachedOnDeviceTest, Checkpoint_IsSavedWhileStepsGoOnAndLoaded) {
  ExpectAlike([](const ShardedOptimizerOptions& options, c10::Device device) {
    return SaveAndLoad(absl::StrCat(::testing::TempDir(), "/", device.is_cpu() ? "cpu" : "devices",
                                    options.state_device, options.world_size),
                       options, device);
  });
}

TEST(AttachedOnDeviceTest, AddedParameters_AreSteppedToo) { ExpectAlike(AddParameters); }

TEST(AttachedOnDeviceTest, RulesThatNeedWholeParameters_HaveTheBitsOfTheCpu) {
  for (const std::string rule : {"adafactor", "lamb"}) {
    SCOPED_TRACE(rule);
    ExpectAlike([&rule](const ShardedOptimizerOptions& options, c10::Device device) {
      DeviceTrainer trainer(options, device);
      trainer.Make(RuleOptions(rule));
      for (int step = 0; step < 3; ++step) trainer.Step();
      return trainer.Everything();
    });
  }
}

// The values stay on the device when their trainer goes, and the next one finds them.
TEST(AttachedOnDeviceTest, Successor_GoesOnWhereTheFirstOneEnded) {
  const auto steps = [](const ShardedOptimizerOptions& options, c10::Device device, int count) {
    DeviceTrainer trainer(options, device);
    trainer.Make(RuleOptions("adam"));
    for (int step = 0; step < count; ++step) trainer.Step();
    std::string everything = trainer.Everything();
    trainer.optimizer->Close();
    return everything;
  };
  std::string before;
  const std::vector<std::string> after =
      OnDevices(1, "", [&](const ShardedOptimizerOptions& options, c10::Device device) {
        before = steps(options, device, 3);
        return steps(options, device, 0);
      });
  EXPECT_FALSE(before.empty());
  EXPECT_TRUE(after[0] == before);
}

}  // namespace
}  // namespace optshard::testing
