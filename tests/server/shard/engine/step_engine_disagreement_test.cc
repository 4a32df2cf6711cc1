// Ranks that disagree: the same error everywhere, nothing applied.

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "common/errors.h"
#include "common/gradient_mode.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/shard/engine/step_engine.h"
#include "server/shard/engine/step_input.h"
#include "tests/server/shard/engine/engine_rig.h"

namespace optshard::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

void ExpectAllRefuse(const std::vector<StepEngine::Result>& results, const std::string& text) {
  for (size_t r = 0; r < results.size(); ++r) {
    EXPECT_EQ(results[r].status.code(), absl::StatusCode::kInvalidArgument) << results[r].status;
    EXPECT_THAT(std::string(results[r].status.message()), HasSubstr(text)) << "rank " << r;
    EXPECT_EQ(results[r].outcome, StepOutcome::kNotApplied);
    EXPECT_FALSE(results[r].plane_failed);
    EXPECT_TRUE(results[r].refused);
  }
}

// With what was wrong corrected, all go on as if nothing had been.
void ExpectNextStepIsGood(EngineRig& rig) {
  for (Rank r = 0; r < rig.options().world_size; ++r) {
    rig.rank(r).hyperparameters = rig.rank(0).hyperparameters;
  }
  rig.GiveAllGradients();
  ExpectAllOk(rig.Step());
  rig.StepOracleAlong();
  EXPECT_EQ(rig.DifferenceToOracle(), "");
  EXPECT_EQ(rig.rank(0).engine->finished(), 1);
}

TEST(StepEngine_HyperparametersDiffer, NamesGroupOptionAndValues) {
  EngineRig::Options options;
  options.world_size = 3;
  EngineRig rig(options);
  rig.GiveAllGradients();
  rig.rank(2).hyperparameters[1].Set("lr", 0.5);
  const std::vector<StepEngine::Result> results = rig.Step();
  ExpectAllRefuse(results, "group 1: lr is 0.001 on rank 0 but 0.5 on rank 2");
  EXPECT_TRUE(errors::IsRanksDisagree(results[0].status));
  EXPECT_THAT(errors::RanksOf(results[0].status), ElementsAre(2));
  EXPECT_EQ(rig.DifferenceToOracle(), "");
  ExpectNextStepIsGood(rig);
}

TEST(StepEngine_HyperparametersChangeOnAllRanks, AreUsed) {
  EngineRig::Options options;
  EngineRig rig(options);
  for (int step = 1; step <= 3; ++step) {
    rig.GiveAllGradients();
    for (Rank r = 0; r < 2; ++r) rig.rank(r).hyperparameters[0].Set("lr", 0.1 * step);
    ExpectAllOk(rig.Step());
    rig.StepOracleAlong();
  }
  EXPECT_EQ(rig.DifferenceToOracle(), "");
}

TEST(StepEngine_AveragedGradientMissingOnOneRank, NamesParameterAndRanks) {
  EngineRig::Options options;
  options.world_size = 3;
  options.gradient_mode = GradientMode::kAveraged;
  EngineRig rig(options);
  rig.GiveGradients(
      [](StepNumber, Rank rank, int parameter) { return !(rank == 1 && parameter == 5); });
  const std::vector<StepEngine::Result> results = rig.Step();
  ExpectAllRefuse(results,
                  "parameter 5 \"head.weight\" has a gradient on ranks 0, 2 but none on "
                  "rank 1");
  EXPECT_THAT(errors::RanksOf(results[2].status), ElementsAre(1));
  EXPECT_EQ(rig.DifferenceToOracle(), "");
  ExpectNextStepIsGood(rig);
}

TEST(StepEngine_InvalidHyperparameterOnOneRank, AllRanksAreToldWhoAndWhat) {
  for (const GradientMode mode : {GradientMode::kAveraged, GradientMode::kReduce}) {
    EngineRig::Options options;
    options.world_size = 3;
    options.gradient_mode = mode;
    EngineRig rig(options);
    rig.GiveAllGradients();
    rig.rank(1).hyperparameters[0].Set("lr", std::numeric_limits<double>::quiet_NaN());
    ExpectAllRefuse(rig.Step(), "rank 1: param group 0");
    EXPECT_EQ(rig.DifferenceToOracle(), "");
    ExpectNextStepIsGood(rig);
  }
}

TEST(StepEngine_StructuralOptionChanges, IsRefused) {
  EngineRig::Options options;
  EngineRig rig(options);
  rig.GiveAllGradients();
  for (Rank r = 0; r < 2; ++r) rig.rank(r).hyperparameters[1].Set("amsgrad", true);
  ExpectAllRefuse(rig.Step(), "amsgrad");
}

// Rank 1 brings its replica as `change` leaves it.
std::vector<StepEngine::Result> StepWithChangedTensors(
    EngineRig& rig, const std::function<void(std::vector<ReplicaTensor>&)>& change) {
  std::vector<StepEngine::Result> results(2);
  rig.OnEveryRank([&](Rank r) {
    std::vector<ReplicaTensor> tensors = rig.rank(r).replica->tensors();
    if (r == 1) change(tensors);
    StepInput input;
    input.replica = tensors;
    input.regions = rig.rank(r).replica->regions();
    input.hyperparameters = rig.rank(r).hyperparameters;
    input.timeout = absl::Seconds(20);
    results[r] = rig.rank(r).engine->Step(input);
  });
  return results;
}

TEST(StepEngine_ReplicaWithoutMemoryOnOneRank, AllRanksAreToldWhoAndWhat) {
  for (const GradientMode mode : {GradientMode::kAveraged, GradientMode::kReduce}) {
    EngineRig::Options options;
    options.gradient_mode = mode;
    EngineRig rig(options);
    rig.GiveAllGradients();
    ExpectAllRefuse(
        StepWithChangedTensors(
            rig, [](std::vector<ReplicaTensor>& tensors) { tensors[3].parameter = nullptr; }),
        "rank 1: parameter 3 \"fc.weight\" has no memory");
    ExpectNextStepIsGood(rig);
  }
}

TEST(StepEngine_GradientOutsideTheSharedMemoryOnOneRank, AllRanksAreToldWhoAndWhat) {
  for (const Placement placement : {Placement::kReachable, Placement::kNodes}) {
    EngineRig::Options options;
    options.placements = {placement};
    EngineRig rig(options);
    rig.GiveAllGradients();
    const Values values = rig.rank(1).replica->Gradient(3);
    const std::vector<float> elsewhere(values.begin(), values.end());
    ExpectAllRefuse(StepWithChangedTensors(rig,
                                           [&elsewhere](std::vector<ReplicaTensor>& tensors) {
                                             tensors[3].gradient = elsewhere.data();
                                           }),
                    "rank 1: in the memory that the ranks of this host share: the gradient of "
                    "parameter 3 \"fc.weight\" does not lie");
    EXPECT_EQ(rig.DifferenceToOracle(), "");
    ExpectNextStepIsGood(rig);
  }
}

TEST(StepEngine_SomeStepWhileOthersSynchronise, AllAreToldWho) {
  EngineRig::Options options;
  options.world_size = 3;
  options.placements = {Placement::kReachable};
  EngineRig rig(options);
  rig.GiveAllGradients();
  rig.OnEveryRank([&](Rank r) {
    StepEngine& engine = *rig.rank(r).engine;
    const TestReplica& replica = *rig.rank(r).replica;
    StepInput input;
    input.replica = replica.tensors();
    input.regions = replica.regions();
    input.hyperparameters = rig.rank(r).hyperparameters;
    input.timeout = absl::Seconds(20);
    const absl::Status differs =
        r == 2 ? engine.SyncParameters(input.replica, input.regions, input.timeout).status
               : engine.Step(input).status;
    EXPECT_TRUE(errors::IsRanksDisagree(differs)) << differs;
    EXPECT_EQ(errors::RanksOf(differs), std::vector<Rank>{2});
  });
  ExpectNextStepIsGood(rig);
}

// Its operations are the votes, the hyperparameters' texts, and the wait until all know the
// refusal.
std::vector<StepEngine::Result> RefusedWithALoss(int64_t operation) {
  EngineRig::Options options;
  options.world_size = 3;
  options.placements = {Placement::kReachable};
  EngineRig rig(options);
  rig.GiveAllGradients();
  rig.rank(2).hyperparameters[1].Set("lr", 0.5);
  rig.hub().KillInWaitFor(1, operation);
  std::vector<StepEngine::Result> results = rig.Step();
  EXPECT_EQ(rig.DifferenceToOracle(), "");
  return results;
}

TEST(StepEngine_RankLostWhileTheHyperparametersAreCompared, IsWhatTheOthersSay) {
  const std::vector<StepEngine::Result> results = RefusedWithALoss(0);
  for (const Rank r : {0, 2}) {
    EXPECT_TRUE(errors::IsPeerLost(results[r].status)) << results[r].status;
    EXPECT_THAT(errors::RanksOf(results[r].status), ElementsAre(1));
    EXPECT_EQ(results[r].outcome, StepOutcome::kNotApplied);
    EXPECT_TRUE(results[r].plane_failed);
  }
}

// Such as a process that ends because of the refusal.
TEST(StepEngine_RankLostAfterARefusal, TheOthersSayTheRefusal) {
  const std::vector<StepEngine::Result> results = RefusedWithALoss(1);
  for (const Rank r : {0, 2}) {
    EXPECT_TRUE(errors::IsRanksDisagree(results[r].status)) << results[r].status;
    EXPECT_TRUE(results[r].refused);
  }
}

// Nobody returns while others may still wait for the votes.
TEST(StepEngine_RankThatDoesNotHearOfARefusal, IsWaitedFor) {
  EngineRig::Options options;
  options.placements = {Placement::kReachable};
  EngineRig rig(options);
  rig.GiveGradients([](StepNumber, Rank, int) { return true; });
  for (Rank r = 0; r < 2; ++r) rig.rank(r).hyperparameters[0].Set("lr", -1.0);
  ExpectAllRefuse(rig.Step(), "lr");
  EXPECT_EQ(rig.hub().OperationsStarted(0), 2);
}

}  // namespace
}  // namespace optshard::testing
