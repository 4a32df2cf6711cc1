// Optimizers of parameters on devices: the bits of the same job on CPUs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "common/isolated_object.h"
#include "tests/client/device_jobs.h"
#include "tests/client/tensors.h"
#include "tests/server/shard/engine/fake_device_executor.h"
#include "tests/testing/client_ranks.h"
#include "tests/testing/device_ranks.h"

namespace optshard::testing {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

using Body = std::function<std::string(ShardedOptimizerOptions options, c10::Device device)>;

// What `body` returns on every rank, on CPUs and on devices, with the state there and on the host.
void ExpectAlike(int world_size, const Body& body) {
  std::vector<std::string> on_hosts(world_size);
  EXPECT_THAT(RunServedRanks(world_size,
                             [&](const ShardedOptimizerOptions& options) {
                               on_hosts[options.rank] = body(options, c10::kCPU);
                             }),
              Each(absl::OkStatus()));
  for (const std::string state_device : {"", "cpu"}) {
    SCOPED_TRACE(absl::StrCat("state_device \"", state_device, "\""));
    std::vector<std::string> on_devices(world_size);
    DeviceRanks ranks(world_size);
    EXPECT_THAT(ranks.Run([&](ShardedOptimizerOptions options, c10::Device device) {
      options.state_device = state_device;
      on_devices[options.rank] = body(options, device);
    }),
                Each(absl::OkStatus()));
    for (int rank = 0; rank < world_size; ++rank) {
      EXPECT_FALSE(on_hosts[rank].empty());
      EXPECT_TRUE(on_hosts[rank] == on_devices[rank]) << "rank " << rank;
    }
  }
}

class OptimizerOnDevice : public ::testing::TestWithParam<DeviceWay> {};

TEST_P(OptimizerOnDevice, Steps_HaveTheBitsOfTheCpu) {
  ExpectAlike(GetParam().world_size,
              [](const ShardedOptimizerOptions& options, c10::Device device) {
                return TakeSteps(GetParam(), options, device);
              });
}

INSTANTIATE_TEST_SUITE_P(Ways, OptimizerOnDevice, ::testing::ValuesIn(DeviceWays()),
                         [](const auto& test) { return test.param.name; });

TEST(OptimizerOnDeviceTest, StateIsSetAndLoadedAndValuesRefreshed) { ExpectAlike(3, ChangeState); }

TEST(OptimizerOnDeviceTest, Checkpoint_IsSavedWhileStepsGoOnAndLoaded) {
  ExpectAlike(2, [](const ShardedOptimizerOptions& options, c10::Device device) {
    return SaveAndLoad(absl::StrCat(::testing::TempDir(), "/", device.is_cpu() ? "cpu" : "devices",
                                    options.state_device),
                       options, device);
  });
}

TEST(OptimizerOnDeviceTest, AddedParameters_AreSteppedToo) { ExpectAlike(2, AddParameters); }

TEST(OptimizerOnDeviceTest, RulesThatNeedWholeParameters_HaveTheBitsOfTheCpu) {
  for (const std::string rule : {"adafactor", "lamb", "muon"}) {
    SCOPED_TRACE(rule);
    // oneDNN does not go beside LibTorch under sanitizers.
    if (rule == "muon" && !ObjectsAreIsolated()) continue;
    ExpectAlike(2, [&rule](const ShardedOptimizerOptions& options, c10::Device device) {
      DeviceTrainer trainer(options, device);
      if (rule == "muon") trainer.parameters = {trainer.parameters[0]};
      trainer.Make(RuleOptions(rule));
      for (int step = 0; step < 3; ++step) trainer.Step();
      return trainer.Everything();
    });
  }
}

TEST(OptimizerOnDeviceTest, RuleWithoutKernels_IsSteppedWithTheStateOnTheHost) {
  const WithoutKernels none("lion");
  DeviceRanks ranks(1);
  EXPECT_THAT(ranks.Run([](ShardedOptimizerOptions options, c10::Device device) {
    options.state_device = "cpu";
    DeviceTrainer trainer(options, device);
    trainer.Make(RuleOptions("lion"));
    const std::string before = trainer.Everything();
    trainer.Step();
    EXPECT_NE(trainer.Everything(), before);
  }),
              Each(absl::OkStatus()));
}

// The step is on the stream that is the trainer's when it calls.
TEST(OptimizerOnDeviceTest, Step_IsInTheOrderOfTheTrainersStream) {
  DeviceRanks ranks(1);
  EXPECT_THAT(ranks.Run([&](const ShardedOptimizerOptions& options, c10::Device device) {
    DeviceTrainer trainer(options, device);
    trainer.Make(Sgd(1));
    const at::Tensor& parameter = trainer.parameters[1];
    const std::string before = BytesOnHost(parameter);
    parameter.sum().backward();
    int looks = 0;
    ranks.devices().Enqueue(ranks.stream(0), [&] { return ++looks > 20; });
    trainer.optimizer->step();
    EXPECT_LT(looks, 20);  // it has not waited for the device
    EXPECT_NE(BytesOnHost(parameter), before);
    EXPECT_GT(looks, 20);
  }),
              Each(absl::OkStatus()));
}

TEST(OptimizerOnDeviceTest, OwnersThatHaveNoDevice_AreRefused) {
  const WithoutKernels none("lion");
  DeviceRanks ranks(1);
  const std::vector<absl::Status> thrown = ranks.Run([&](const ShardedOptimizerOptions& options,
                                                         c10::Device device) {
    DeviceTrainer shared(options, device);
    shared.options.share_parameters = true;
    EXPECT_THAT(std::string(ErrorOf([&] { shared.Make(Sgd(1)); }).message()),
                AllOf(HasSubstr("fake:0"), HasSubstr("share_parameters")));
    DeviceTrainer without_kernels(options, device);
    EXPECT_THAT(std::string(ErrorOf([&] { without_kernels.Make(RuleOptions("lion")); }).message()),
                HasSubstr("param group 0: rule \"lion\""));
    DeviceTrainer with_class(options, device);
    EXPECT_THAT(
        std::string(ErrorOf([&] {
                      with_class.Make(RuleOptions::OfClass<torch::optim::SGD>(1.0));
                    }).message()),
        AllOf(HasSubstr("param group 0 has an update of the trainer's own"), HasSubstr("fake:0")));
  });
  EXPECT_THAT(thrown, Each(absl::OkStatus()));

  // As a build for CPUs has it.
  const std::vector<absl::Status> without =
      RunRanks(1, [&](const ShardedOptimizerOptions& options) {
        DeviceTrainer trainer(options, FakeTorchDevice::At(0));
        trainer.Make(Sgd(1));
      });
  EXPECT_TRUE(absl::IsUnimplemented(without[0])) << without[0];
  EXPECT_THAT(std::string(without[0].message()),
              AllOf(HasSubstr("fake:0"), HasSubstr("before the optimizer is made")));
}

}  // namespace
}  // namespace optshard::testing
