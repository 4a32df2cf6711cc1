// Ranks that disagree: the same error everywhere, nothing applied.

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
  }
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
  }
}

TEST(StepEngine_StructuralOptionChanges, IsRefused) {
  EngineRig::Options options;
  EngineRig rig(options);
  rig.GiveAllGradients();
  for (Rank r = 0; r < 2; ++r) rig.rank(r).hyperparameters[1].Set("amsgrad", true);
  ExpectAllRefuse(rig.Step(), "amsgrad");
}

TEST(StepEngine_ReplicaWithoutMemoryOnOneRank, AllRanksAreToldWhoAndWhat) {
  for (const GradientMode mode : {GradientMode::kAveraged, GradientMode::kReduce}) {
    EngineRig::Options options;
    options.gradient_mode = mode;
    EngineRig rig(options);
    rig.GiveAllGradients();
    std::vector<StepEngine::Result> results(2);
    rig.OnEveryRank([&](Rank r) {
      std::vector<ReplicaTensor> tensors = rig.rank(r).replica->tensors();
      if (r == 1) tensors[3].parameter = nullptr;
      StepInput input;
      input.replica = tensors;
      input.regions = rig.rank(r).replica->regions();
      input.hyperparameters = rig.rank(r).hyperparameters;
      input.timeout = absl::Seconds(20);
      results[r] = rig.rank(r).engine->Step(input);
    });
    ExpectAllRefuse(results, "rank 1: parameter 3 \"fc.weight\" has no memory");
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
}

}  // namespace
}  // namespace optshard::testing
