// The step engine over the fake plane: bits, missing gradients, disagreement.

#include "server/shard/step_engine.h"

#include <limits>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/shard/engine_rig.h"

namespace optshard::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

void ExpectAllOk(const std::vector<StepEngine::Result>& results) {
  for (size_t r = 0; r < results.size(); ++r) {
    ASSERT_TRUE(results[r].status.ok()) << "rank " << r << ": " << results[r].status;
  }
}

std::string ModeName(FakeHub::Mode mode) {
  return mode == FakeHub::Mode::kImmediate ? "Immediate" : "Delayed";
}

std::string PolicyName(PartitionPolicy policy) {
  switch (policy) {
    case PartitionPolicy::kGreedy:
      return "Greedy";
    case PartitionPolicy::kGreedyInOrder:
      return "InOrder";
    case PartitionPolicy::kBalanced:
      return "Balanced";
    case PartitionPolicy::kReplicated:
      return "Replicated";
  }
  return "";
}

// --- Bits, over everything that must not change them.

using BitsCase =
    std::tuple<int, FakeHub::Mode, GradientMode, PartitionPolicy, std::vector<Placement>>;

class StepEngineBitsTest : public ::testing::TestWithParam<BitsCase> {};

TEST_P(StepEngineBitsTest, FourSteps_EqualOneProcessToTheBit) {
  for (uint64_t seed = 1; seed <= 2; ++seed) {
    EngineRig::Options options;
    std::tie(options.world_size, options.mode, options.gradient_mode, options.policy,
             options.placements) = GetParam();
    options.threads = seed == 1 ? 1 : 3;
    options.seed = seed;
    EngineRig rig(options);
    for (int step = 1; step <= 4; ++step) {
      rig.GiveAllGradients();
      ExpectAllOk(rig.Step());
      rig.StepOracleAlong();
      ASSERT_EQ(rig.DifferenceToOracle(), "") << "after step " << step;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, StepEngineBitsTest,
    ::testing::Combine(::testing::Values(1, 2, 3, 4),
                       ::testing::Values(FakeHub::Mode::kImmediate, FakeHub::Mode::kDelayed),
                       ::testing::Values(GradientMode::kAveraged, GradientMode::kReduce),
                       ::testing::Values(PartitionPolicy::kGreedy, PartitionPolicy::kGreedyInOrder,
                                         PartitionPolicy::kBalanced, PartitionPolicy::kReplicated),
                       ::testing::Values(std::vector<Placement>{Placement::kFlatRegions},
                                         std::vector<Placement>{Placement::kReachable},
                                         std::vector<Placement>{Placement::kScattered,
                                                                Placement::kFlatRegions,
                                                                Placement::kFlatUnvouched})),
    [](const ::testing::TestParamInfo<BitsCase>& info) {
      return absl::StrCat(
          "Ranks", std::get<0>(info.param), ModeName(std::get<1>(info.param)),
          std::get<2>(info.param) == GradientMode::kReduce ? "Reduce" : "Averaged",
          PolicyName(std::get<3>(info.param)),
          std::get<4>(info.param).size() == 1 ? NameOf(std::get<4>(info.param)[0]) : "Mixed");
    });

TEST(StepEngineBits_TwoNodeGroups_SumInTreeOrder, EqualOneProcessToTheBit) {
  for (const Placement placement : {Placement::kFlatRegions, Placement::kReachable}) {
    EngineRig::Options options;
    options.world_size = 4;
    options.placements = {placement};
    options.nodes = {"a", "b", "a", "b"};
    EngineRig rig(options);
    rig.GiveAllGradients();
    ExpectAllOk(rig.Step());
    rig.StepOracleAlong();
    EXPECT_EQ(rig.DifferenceToOracle(), "") << NameOf(placement);

    // The data would show another order: the same ranks on one node come out differently.
    options.nodes = {"a", "a", "a", "a"};
    EngineRig other(options);
    other.GiveAllGradients();
    ExpectAllOk(other.Step());
    EXPECT_NE(BitDifference(rig.rank(0).replica->Parameter(0), other.rank(0).replica->Parameter(0)),
              "");
  }
}

TEST(StepEngineBits_OneCopyOfTheParameters, EqualOneProcessToTheBit) {
  for (const PartitionPolicy policy : {PartitionPolicy::kGreedy, PartitionPolicy::kBalanced}) {
    EngineRig::Options options;
    options.world_size = 3;
    options.policy = policy;
    options.placements = {Placement::kOneCopy};
    EngineRig rig(options);
    for (int step = 1; step <= 3; ++step) {
      rig.GiveAllGradients();
      ExpectAllOk(rig.Step());
      rig.StepOracleAlong();
    }
    EXPECT_EQ(rig.DifferenceToOracle(), "");
  }
}

TEST(StepEngineBits_EveryRule, EqualOneProcessToTheBit) {
  for (const UpdateRule* rule : RuleRegistry::All()) {
    EngineRig::Options options;
    options.world_size = 3;
    options.rule = rule->spec().name;
    EngineRig rig(options);
    for (int step = 1; step <= 3; ++step) {
      rig.GiveAllGradients();
      ExpectAllOk(rig.Step());
      rig.StepOracleAlong();
    }
    EXPECT_EQ(rig.DifferenceToOracle(), "") << options.rule;
  }
}

TEST(StepEngineBits_SlotsThatDifferByGroup, EqualOneProcessToTheBit) {
  EngineRig::Options options;
  options.world_size = 3;
  options.hyperparameters.resize(2);
  options.hyperparameters[1].Set("amsgrad", true);
  EngineRig rig(options);
  for (int step = 1; step <= 3; ++step) {
    rig.GiveAllGradients();
    ExpectAllOk(rig.Step());
    rig.StepOracleAlong();
  }
  EXPECT_EQ(rig.DifferenceToOracle(), "");
}

TEST(StepEngineBits_SmallestWindow, EqualOneProcessToTheBit) {
  EngineRig::Options options;
  options.world_size = 3;
  options.window = 1;
  options.staging_buffers = 1;
  options.placements = {Placement::kScattered};
  EngineRig rig(options);
  rig.GiveAllGradients();
  ExpectAllOk(rig.Step());
  rig.StepOracleAlong();
  EXPECT_EQ(rig.DifferenceToOracle(), "");
}

// --- Which parameters take part.

TEST(StepEngine_GradientMissingOnSomeRanks_CountsAsZero, EqualOneProcessToTheBit) {
  for (const Placement placement :
       {Placement::kFlatRegions, Placement::kScattered, Placement::kReachable}) {
    EngineRig::Options options;
    options.world_size = 3;
    options.placements = {placement};
    EngineRig rig(options);
    for (int step = 1; step <= 4; ++step) {
      rig.GiveGradients(
          [](StepNumber at, Rank rank, int parameter) { return (at + rank + parameter) % 3 != 0; });
      ExpectAllOk(rig.Step());
      rig.StepOracleAlong();
      ASSERT_EQ(rig.DifferenceToOracle(), "") << "after step " << step;
    }
  }
}

TEST(StepEngine_GradientMissingOnAllRanks_SkipsTheParameter, StepCountStays) {
  for (const GradientMode mode : {GradientMode::kAveraged, GradientMode::kReduce}) {
    EngineRig::Options options;
    options.world_size = 2;
    options.gradient_mode = mode;
    EngineRig rig(options);
    for (int step = 1; step <= 4; ++step) {
      // Parameters freeze and thaw.
      rig.GiveGradients([](StepNumber at, Rank, int parameter) {
        return (at + parameter) % 2 == 0 || parameter == 3;
      });
      ExpectAllOk(rig.Step());
      rig.StepOracleAlong();
      ASSERT_EQ(rig.DifferenceToOracle(), "") << "after step " << step;
    }
    EXPECT_EQ(rig.rank(0).store->step_count(0), 2);
    EXPECT_EQ(rig.rank(0).store->step_count(3), 4);
    EXPECT_EQ(rig.rank(0).engine->finished(), 4);
  }
}

TEST(StepEngine_NoGradientAnywhere_Skips, NothingChanges) {
  EngineRig::Options options;
  EngineRig rig(options);
  rig.GiveAllGradients();
  ExpectAllOk(rig.Step());
  rig.StepOracleAlong();
  rig.GiveGradients([](StepNumber, Rank, int) { return false; });
  const std::vector<StepEngine::Result> results = rig.Step();
  ExpectAllOk(results);
  EXPECT_TRUE(results[0].info.skipped);
  EXPECT_EQ(results[0].info.step, 1);
  EXPECT_EQ(rig.DifferenceToOracle(), "");
}

TEST(StepEngine_MoreRanksThanParameters, EmptyShardsTakePart) {
  GroupSpec group;
  ParameterSpec spec;
  spec.name = "only";
  spec.shape = {100};
  group.parameters = {spec};
  for (const PartitionPolicy policy : {PartitionPolicy::kGreedy, PartitionPolicy::kBalanced}) {
    EngineRig::Options options;
    options.world_size = 4;
    options.space = ParameterSpace({group});
    options.policy = policy;
    EngineRig rig(options);
    rig.GiveAllGradients();
    ExpectAllOk(rig.Step());
    rig.StepOracleAlong();
    EXPECT_EQ(rig.DifferenceToOracle(), "");
    int empty = 0;
    for (Rank r = 0; r < 4; ++r) empty += rig.rank(r).store->state_bytes() == 0 ? 1 : 0;
    EXPECT_EQ(empty, 3);
  }
}

TEST(StepEngine_OnlyEmptyParameters, StepIsCounted) {
  GroupSpec group;
  ParameterSpec spec;
  spec.name = "empty";
  spec.shape = {0};
  group.parameters = {spec};
  EngineRig::Options options;
  options.space = ParameterSpace({group});
  EngineRig rig(options);
  rig.GiveAllGradients();
  const std::vector<StepEngine::Result> results = rig.Step();
  ExpectAllOk(results);
  EXPECT_EQ(results[0].info.step, 1);
  EXPECT_EQ(rig.rank(0).store->step_count(0), 1);
}

// --- The trainer's memory.

TEST(StepEngine_AnyPlacement, LeavesTheGradientsAlone) {
  for (const Placement placement : {Placement::kFlatRegions, Placement::kFlatUnvouched,
                                    Placement::kScattered, Placement::kReachable}) {
    EngineRig::Options options;
    options.world_size = 3;
    options.placements = {placement};
    EngineRig rig(options);
    rig.GiveAllGradients();
    std::map<std::pair<Rank, int>, std::vector<float>> before;
    for (Rank r = 0; r < 3; ++r) {
      for (int p = 0; p < rig.space().parameter_count(); ++p) {
        before[{r, p}] = rig.rank(r).replica->Gradient(p);
      }
    }
    ExpectAllOk(rig.Step());
    for (const auto& [key, values] : before) {
      EXPECT_EQ(BitDifference(values, rig.rank(key.first).replica->Gradient(key.second)), "")
          << NameOf(placement) << " rank " << key.first << " parameter " << key.second;
    }
  }
}

TEST(StepEngine_SyncParameters, GivesAllRanksTheValuesOfRankZero) {
  const std::vector<Placement> mixed = {Placement::kFlatRegions, Placement::kScattered};
  const std::vector<Placement> reachable = {Placement::kReachable};
  for (const auto& [policy, placements] : {std::pair(PartitionPolicy::kBalanced, mixed),
                                           std::pair(PartitionPolicy::kReplicated, mixed),
                                           std::pair(PartitionPolicy::kBalanced, reachable),
                                           std::pair(PartitionPolicy::kReplicated, reachable)}) {
    EngineRig::Options options;
    options.world_size = 3;
    options.policy = policy;
    options.mode = FakeHub::Mode::kDelayed;
    options.placements = placements;
    EngineRig rig(options);
    for (int p = 0; p < rig.space().parameter_count(); ++p) {
      for (Rank r = 1; r < 3; ++r) {
        rig.rank(r).replica->SetParameter(
            p, OrderSensitiveValues(rig.space().parameter(p).elements(), 5000 + 10 * r + p));
      }
    }
    rig.OnEveryRank([&](Rank r) {
      const TestReplica& replica = *rig.rank(r).replica;
      const StepEngine::Result result = rig.rank(r).engine->SyncParameters(
          replica.tensors(), replica.regions(), absl::Seconds(20));
      EXPECT_TRUE(result.status.ok()) << result.status;
    });
    EXPECT_EQ(rig.DifferenceToOracle(), "");
    rig.GiveAllGradients();
    ExpectAllOk(rig.Step());
    rig.StepOracleAlong();
    EXPECT_EQ(rig.DifferenceToOracle(), "");
  }
}

TEST(StepEngine_RefusalMeetsASynchronisation, AllGiveItUpAndMayTryAgain) {
  EngineRig::Options options;
  options.world_size = 3;
  options.placements = {Placement::kReachable};
  EngineRig rig(options);
  rig.OnEveryRank([&](Rank r) {
    StepEngine& engine = *rig.rank(r).engine;
    const TestReplica& replica = *rig.rank(r).replica;
    const StepEngine::Result result =
        r == 1 ? engine.Refuse(errors::TrainerGone({1}, "process 7 has ended"))
               : engine.SyncParameters(replica.tensors(), replica.regions(), absl::Seconds(20));
    EXPECT_TRUE(errors::IsTrainerGone(result.status)) << result.status;
    EXPECT_FALSE(result.plane_failed);
  });
  rig.GiveAllGradients();
  ExpectAllOk(rig.Step());
  rig.StepOracleAlong();
  EXPECT_EQ(rig.DifferenceToOracle(), "");
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

// --- Disagreement: the same error everywhere, nothing applied.

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

// --- The timeline.

TEST(StepEngine_Timeline, HasEveryBucketAndPhase) {
  EngineRig::Options options;
  EngineRig rig(options);
  rig.GiveAllGradients();
  ExpectAllOk(rig.Step());
  std::map<std::string, int> seen;
  for (const TimelineSpan& span : rig.rank(0).timeline->Read()) {
    EXPECT_EQ(span.step, 1);
    EXPECT_GE(span.duration_us, 0);
    ++seen[span.phase];
  }
  const int buckets = static_cast<int>(rig.buckets().size());
  const int own = static_cast<int>(rig.rank(0).store->own_buckets().size());
  EXPECT_EQ(seen, (std::map<std::string, int>{{"reduce", buckets},
                                              {"update", own},
                                              {"publish", buckets},
                                              {"prepare", 1},
                                              {"commit", 1},
                                              {"apply", 1}}));
}

}  // namespace
}  // namespace optshard::testing
