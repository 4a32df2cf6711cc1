// Steps of one rank on a real GPU: the bits of one process on CPUs. step_engine_device_test.cc has
// what fakes can show.
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/dataplane/nccl/cuda_device.h"
#include "gtest/gtest.h"
#include "server/update/cuda/cuda_executor.h"
#include "tests/server/shard/engine/engine_rig.h"

namespace optshard::testing {
namespace {

absl::StatusOr<std::unique_ptr<Executor>> MakeCudaExecutor(const HostResources&) {
  return CudaExecutor::Create(0);
}

class StepEngineOnGpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    absl::StatusOr<std::shared_ptr<DeviceApi>> device = UseCudaDevice(0);
    ASSERT_TRUE(device.ok()) << device.status();
    device_ = *std::move(device);
  }

  EngineRig::Options OnGpu() const {
    EngineRig::Options options;
    options.world_size = 1;
    options.device = device_;
    options.executor_of = [](Rank) { return MakeCudaExecutor; };
    return options;
  }

  // All but Muon, whose products of matrices are rounded in another order there.
  static std::vector<GroupRule> Rules() {
    std::vector<GroupRule> rules;
    for (const GroupRule& rule : RulesFor(PartitionPolicy::kGreedy)) {
      if (rule.name != "muon") rules.push_back(rule);
    }
    return rules;
  }

  static void ExpectStepsOfOneProcess(EngineRig& rig, int steps) {
    for (int step = 1; step <= steps; ++step) {
      // Some are missing.
      rig.GiveGradients([](StepNumber number, Rank, int parameter) {
        return (number + static_cast<StepNumber>(parameter)) % 5 != 0;
      });
      ExpectAllOk(rig.Step());
      rig.StepOracleAlong();
      // What the next gradients replace has been read.
      ExpectAllOk(rig.Synchronize());
      ASSERT_EQ(rig.DifferenceToOracle(), "") << "after step " << step;
    }
  }

  std::shared_ptr<DeviceApi> device_;
};

TEST_F(StepEngineOnGpuTest, AllRulesWithTheBitsOfCpus_EqualOneProcess) {
  ASSERT_GT(Rules().size(), 10u);
  for (const Placement placement : {Placement::kFlatRegions, Placement::kScattered}) {
    EngineRig::Options options = OnGpu();
    options.placements = {placement};
    options.rules = Rules();
    options.space = MixedGroups(options.rules);
    EngineRig rig(options);
    ExpectStepsOfOneProcess(rig, 4);
  }
}

TEST_F(StepEngineOnGpuTest, OtherTypesAndFormsOfState_EqualOneProcessToTheBit) {
  for (const StateFormat format : {StateFormat::kFloat32, StateFormat::kBFloat16,
                                   StateFormat::kInt8Dynamic, StateFormat::kInt8Companded}) {
    EngineRig::Options options = OnGpu();
    options.state.format = format;
    std::vector<GroupSpec> groups = MixedDTypeSpace().groups();
    ParameterSpec large;
    large.name = "large";
    large.shape = {100000};
    groups[0].parameters.push_back(large);
    options.space = ParameterSpace(groups);
    EngineRig rig(options);
    ExpectStepsOfOneProcess(rig, 3);
  }
}

// Step returns while the GPU works, and whoever reads meanwhile gets one step's values.
TEST_F(StepEngineOnGpuTest, StateThatIsReadWhileStepsRun_IsOfOneStep) {
  EngineRig::Options options = OnGpu();
  GroupSpec group;
  ParameterSpec large;
  large.name = "large";
  large.shape = {1 << 22};
  group.parameters = {large};
  options.space = ParameterSpace({group});
  options.buckets = {int64_t{1} << 24, int64_t{1} << 20};
  options.rules = {{"sgd"}};
  options.rules[0].hyperparameters.Set("momentum", 1.0);
  EngineRig rig(options);
  constexpr int64_t kRead = 1 << 16;
  rig.rank(0).replica->SetGradient(0, Values(large.elements(), 1));
  std::atomic<bool> ended{false};
  std::thread reader([&] {
    while (!ended) {
      // Gradients of one: the momentum counts steps, in both halves alike.
      Values read(kRead);
      const auto step =
          rig.rank(0).store->TryRead(0, 0, (1 << 21) - kRead / 2, absl::MakeSpan(read));
      ASSERT_TRUE(step.ok()) << step.status();
      if (!step->has_value()) continue;
      for (const double value : read) ASSERT_EQ(value, static_cast<double>(**step));
    }
  });
  for (int step = 1; step <= 200; ++step) ExpectAllOk(rig.Step());
  ExpectAllOk(rig.Synchronize());
  ended = true;
  reader.join();
}

}  // namespace
}  // namespace optshard::testing
