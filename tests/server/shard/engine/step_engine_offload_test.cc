// Steps of replicas on devices whose state is in memory of the host, which makes the updates: over
// fakes of device and NCCL, with the bits of one process.

#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/errors.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/shard/engine/device_cases.h"
#include "tests/server/shard/engine/engine_rig.h"

namespace optshard::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

EngineRig::Options Offloaded(int world_size) {
  EngineRig::Options options;
  options.world_size = world_size;
  options.on_devices = true;
  options.state_on_host = true;
  options.threads = 2;
  return options;
}

// A step of all ranks, which is done when it returns.
void StepAll(EngineRig& rig) {
  ExpectAllOk(rig.Step());
  rig.StepOracleAlong();
  for (Rank r = 0; r < rig.options().world_size; ++r) {
    const StepProgress progress = rig.rank(r).store->ledger().progress();
    EXPECT_EQ(progress.outcome, StepOutcome::kIdle);
    EXPECT_EQ(progress.finished, rig.rank(r).engine->finished());
  }
}

class StepEngineOffloadedTest : public ::testing::TestWithParam<DeviceCase> {};

TEST_P(StepEngineOffloadedTest, StepsOfEveryRule_EqualOneProcessToTheBit) {
  EngineRig rig(OptionsOf(GetParam(), Offloaded(0)));
  for (int step = 1; step <= 3; ++step) {
    GiveSomeGradients(rig);
    ASSERT_NO_FATAL_FAILURE(StepAll(rig));
    ASSERT_EQ(rig.DifferenceToOracle(), "") << "after step " << step;
  }
  EXPECT_THAT(rig.devices().nccl().Misuses(), ::testing::IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(All, StepEngineOffloadedTest, AllDeviceCases(), NameOfCase);

TEST(StepEngineOffloaded, StateOfEveryTypeWithMasters_EqualsOneProcess) {
  for (const EngineRig::Options& options : EveryState(Offloaded(2))) {
    EngineRig rig(options);
    EXPECT_EQ(rig.rank(0).store->device_access(), nullptr) << "the state is on the device";
    ExpectAllOk(rig.SyncParameters());
    for (int step = 1; step <= 3; ++step) {
      rig.GiveAllGradients();
      ASSERT_NO_FATAL_FAILURE(StepAll(rig));
      ASSERT_EQ(rig.DifferenceToOracle(), "") << "after step " << step;
    }
  }
}

// What the trainer has just put on its stream, also where nobody has to be sent it.
TEST(StepEngineOffloaded, MastersOfOneRank_AreTakenBehindTheTrainersStream) {
  EngineRig::Options options = Offloaded(1);
  options.space = MixedDTypeSpace();  // the first parameter is bfloat16
  options.state.master_weights = true;
  EngineRig rig(options);
  const Values values(rig.rank(0).replica->Parameter(0).size(), 7);
  auto looks = std::make_shared<int>(0);
  FakeDevices(rig.devices().devices()).Enqueue(rig.rank(0).stream.get(), [&, looks] {
    if (++*looks < 20) return false;
    rig.rank(0).replica->SetParameter(0, values);
    return true;
  });
  ExpectAllOk(rig.SyncParameters());
  Values masters(values.size());
  ASSERT_TRUE(
      rig.rank(0).store->TryRead(0, ShardStore::kMaster, 0, absl::MakeSpan(masters))->has_value());
  EXPECT_EQ(masters, values);
}

TEST(StepEngineOffloaded, GradientsThatComeLate_AreThoseOfTheStep) {
  for (const int world_size : {1, 2}) {
    EngineRig rig(Offloaded(world_size));
    rig.GiveAllGradients();
    std::vector<std::vector<Values>> gradients(world_size);
    for (Rank r = 0; r < world_size; ++r) {
      TestReplica& replica = *rig.rank(r).replica;
      for (int p = 0; p < rig.space().parameter_count(); ++p) {
        gradients[r].push_back(replica.Gradient(p));
        replica.SetGradient(p, Values(gradients[r][p].size(), 1000));
      }
      auto looks = std::make_shared<int>(0);
      FakeDevices(rig.devices().devices())
          .Enqueue(rig.rank(r).stream.get(), [&rig, &gradients, r, looks] {
            if (++*looks < 20) return false;
            for (int p = 0; p < rig.space().parameter_count(); ++p) {
              rig.rank(r).replica->SetGradient(p, gradients[r][p]);
            }
            return true;
          });
    }
    StepAll(rig);
    EXPECT_EQ(rig.DifferenceToOracle(), "");
  }
}

EngineRig::Options TwoThatTimeOut() {
  EngineRig::Options options = Offloaded(2);
  options.timeout = absl::Milliseconds(500);
  return options;
}

// Unlike where the state is on devices: the host has waited for the gradients before it votes.
TEST(StepEngineOffloaded, RankThatDoesNotReduceGradients_TearsNothing) {
  EngineRig rig(TwoThatTimeOut());
  rig.GiveAllGradients();
  StepAll(rig);
  const StepEngine::Result result = rig.StepOf(0);
  EXPECT_EQ(result.outcome, StepOutcome::kNotApplied) << result.status;
  EXPECT_EQ(errors::RanksOf(result.status), std::vector<Rank>{1}) << result.status;
  EXPECT_EQ(rig.rank(0).store->ledger().progress().outcome, StepOutcome::kIdle);
  EXPECT_EQ(rig.rank(0).engine->finished(), 1);
}

// The other one has made its updates, and says so, also where what it has still to unpack is in the
// way.
TEST(StepEngineOffloaded, RankThatHangsWhileParametersArePublished_LeavesTheStepApplied) {
  for (const Placement placement : {Placement::kFlatRegions, Placement::kScattered}) {
    EngineRig::Options options = TwoThatTimeOut();
    options.placements = {placement};
    EngineRig rig(options);
    rig.GiveAllGradients();
    StepAll(rig);
    int64_t reductions = 0;
    for (const Bucket& bucket : rig.buckets()) reductions += bucket.elements > 0 ? 1 : 0;
    rig.devices().nccl().LetThrough(1, reductions);
    const StepEngine::Result result = rig.Step()[0];
    EXPECT_EQ(result.outcome, StepOutcome::kApplied) << result.status;
    // Itself, where the other one, which waits as long, has told it first.
    EXPECT_THAT(errors::RanksOf(result.status), SizeIs(1)) << result.status;
    EXPECT_EQ(rig.rank(0).engine->finished(), 1);
    EXPECT_EQ(rig.rank(0).store->ledger().progress().outcome, StepOutcome::kApplied);
    rig.StepOracleAlong();
    for (const Slice& slice : rig.shape()->slices(0)) {
      const Values& whole = rig.oracle().Slot(slice.parameter, 0);
      const auto first = whole.begin() + slice.offset_elements;
      Values read(slice.elements);
      const auto step = *rig.rank(0).store->TryRead(slice.parameter, 0, slice.offset_elements,
                                                    absl::MakeSpan(read));
      EXPECT_EQ(step, StepNumber{2});
      EXPECT_EQ(BitDifference({first, first + slice.elements}, read), "");
    }
  }
}

TEST(StepEngineOffloaded, DeviceThatDoesNothing_IsNamedAndTearsNothing) {
  EngineRig::Options options = Offloaded(1);
  options.timeout = absl::Milliseconds(100);
  EngineRig rig(options);
  rig.GiveAllGradients();
  StepAll(rig);
  FakeDevices(rig.devices().devices()).Enqueue(rig.rank(0).stream.get(), [] { return false; });
  const StepEngine::Result result = rig.StepOf(0);
  EXPECT_TRUE(absl::IsDeadlineExceeded(result.status)) << result.status;
  EXPECT_THAT(std::string(result.status.message()), HasSubstr("cuda:0"));
  EXPECT_EQ(result.outcome, StepOutcome::kNotApplied);
  EXPECT_EQ(rig.rank(0).store->ledger().progress().outcome, StepOutcome::kIdle);
}

// The state is not in its memory.
TEST(StepEngineOffloaded, DeviceThatFailsBetweenSteps_LeavesTheState) {
  EngineRig rig(Offloaded(1));
  rig.GiveAllGradients();
  StepAll(rig);
  rig.devices().devices().Fail(absl::DataLossError("an uncorrectable ECC error"));
  const StepEngine::Result result = rig.Step()[0];
  EXPECT_TRUE(absl::IsDataLoss(result.status)) << result.status;
  EXPECT_EQ(result.outcome, StepOutcome::kNotApplied);
  EXPECT_EQ(rig.rank(0).store->ledger().progress().outcome, StepOutcome::kIdle);
}

// By one more admission.
ParameterSpace WithAddedGroup(const ParameterSpace& space) {
  std::vector<GroupSpec> groups = space.groups();
  groups.push_back(MixedSpace().groups()[0]);
  groups.back().admission = space.admission_count();
  for (ParameterSpec& parameter : groups.back().parameters) parameter.name += ".added";
  return ParameterSpace(groups);
}

TEST(StepEngineOffloaded, NextGeneration_GoesOnInPlace) {
  EngineRig rig(Offloaded(1));
  rig.GiveAllGradients();
  StepAll(rig);
  ASSERT_NO_FATAL_FAILURE(rig.Grow(WithAddedGroup(rig.space())));
  ExpectAllOk(rig.SyncParameters());
  rig.GiveAllGradients();
  StepAll(rig);
  EXPECT_EQ(rig.DifferenceToOracle(), "");
}

}  // namespace
}  // namespace optshard::testing
