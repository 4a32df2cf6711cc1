// Comparisons of all ranks' replicas.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "server/shard/engine/replica_comparison.h"
#include "server/shard/engine/step_engine.h"
#include "tests/server/shard/engine/engine_rig.h"

namespace optshard::testing {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

StepEngine::Result Verify(EngineRig& rig, Rank rank) {
  const TestReplica& replica = *rig.rank(rank).replica;
  return rig.rank(rank).engine->VerifyReplicas(replica.tensors(), replica.regions(),
                                               absl::Seconds(20), rig.rank(rank).stream.get());
}

std::vector<absl::Status> VerifyAll(EngineRig& rig) {
  std::vector<absl::Status> statuses(rig.options().world_size);
  rig.OnEveryRank([&](Rank r) {
    const StepEngine::Result result = Verify(rig, r);
    EXPECT_EQ(result.refused, !result.status.ok());
    EXPECT_FALSE(result.plane_failed);
    statuses[r] = result.status;
  });
  return statuses;
}

void ExpectDifference(const std::vector<absl::Status>& statuses, Rank rank, int parameter) {
  for (const absl::Status& status : statuses) {
    EXPECT_TRUE(errors::IsRanksDisagree(status)) << status;
    EXPECT_THAT(errors::RanksOf(status), ElementsAre(rank));
    EXPECT_THAT(std::string(status.message()),
                HasSubstr(absl::StrCat("parameter ", parameter, " ")));
  }
}

void StepAlong(EngineRig& rig) {
  rig.GiveAllGradients();
  ExpectAllOk(rig.Step());
  rig.StepOracleAlong();
  ExpectAllOk(rig.Synchronize());
  EXPECT_EQ(rig.DifferenceToOracle(), "");
}

struct Where {
  Placement placement = Placement::kFlatRegions;
  bool on_devices = false;
};

class StepEngineVerify : public ::testing::TestWithParam<Where> {
 protected:
  EngineRig::Options RigOptions() const {
    EngineRig::Options options;
    options.world_size = 3;
    options.policy = PartitionPolicy::kBalanced;
    options.placements = {GetParam().placement};
    options.on_devices = GetParam().on_devices;
    options.space = MixedDTypeSpace();
    return options;
  }
};

TEST_P(StepEngineVerify, ReplicasWithTheSameBits_AreFoundEqualBetweenAnySteps) {
  EngineRig rig(RigOptions());
  for (int step = 0; step < 3; ++step) {
    EXPECT_THAT(VerifyAll(rig), Each(absl::OkStatus()));
    StepAlong(rig);
  }
}

TEST_P(StepEngineVerify, OneElementOfOneReplica_IsFoundAndNothingElseChanges) {
  EngineRig rig(RigOptions());
  StepAlong(rig);
  for (int p = 0; p < rig.space().parameter_count(); ++p) {
    if (rig.space().parameter(p).elements() == 0) continue;
    TestReplica& replica = *rig.rank(1).replica;
    const Values good = replica.Parameter(p);
    Values bad = good;
    bad.back() = bad.back() == 0 ? -bad.back() : -2 * bad.back();
    replica.SetParameter(p, bad);
    ExpectDifference(VerifyAll(rig), 1, p);
    EXPECT_EQ(BitDifference(bad, replica.Parameter(p)), "");
    replica.SetParameter(p, good);
    EXPECT_EQ(rig.DifferenceToOracle(), "");
  }
  EXPECT_THAT(VerifyAll(rig), Each(absl::OkStatus()));
  StepAlong(rig);
}

TEST_P(StepEngineVerify, NumbersThatAreEqualButInBits_Differ) {
  EngineRig rig(RigOptions());
  const int p = 0;
  for (Rank r = 0; r < 3; ++r) {
    Values values = rig.rank(0).replica->Parameter(p);
    values[0] = r == 2 ? -0.0 : 0.0;
    values[1] = std::numeric_limits<double>::quiet_NaN();  // equal to itself, in bits
    rig.rank(r).replica->SetParameter(p, values);
  }
  ExpectDifference(VerifyAll(rig), 2, p);
}

TEST_P(StepEngineVerify, WhileOthersStep_AllAreToldWho) {
  EngineRig::Options options = RigOptions();
  options.gradient_mode = GradientMode::kAveraged;  // where messages, too, begin with the votes
  EngineRig rig(options);
  rig.GiveAllGradients();
  rig.OnEveryRank([&](Rank r) {
    StepInput input;
    input.replica = rig.rank(r).replica->tensors();
    input.regions = rig.rank(r).replica->regions();
    input.hyperparameters = rig.rank(r).hyperparameters;
    input.timeout = absl::Seconds(20);
    const StepEngine::Result result = r == 1 ? Verify(rig, r) : rig.rank(r).engine->Step(input);
    EXPECT_TRUE(errors::IsRanksDisagree(result.status)) << result.status;
    EXPECT_TRUE(result.refused);
    EXPECT_THAT(std::string(result.status.message()),
                HasSubstr("rank 0 steps, while rank 1 verifies the replicas"));
  });
  EXPECT_THAT(VerifyAll(rig), Each(absl::OkStatus()));
}

INSTANTIATE_TEST_SUITE_P(
    Placements, StepEngineVerify,
    ::testing::Values(Where{Placement::kFlatRegions}, Where{Placement::kScattered},
                      Where{Placement::kReachable}, Where{Placement::kFlatRegions, true}),
    [](const auto& test) {
      return NameOf(test.param.placement) + (test.param.on_devices ? "OnDevices" : "");
    });

TEST(StepEngine_VerifyWithARankLost, TearsNothing) {
  EngineRig::Options options;
  options.world_size = 3;
  for (const int64_t operation : {0, 1}) {  // the votes, the digests
    EngineRig rig(options);
    rig.hub().KillAt(1, operation);
    rig.OnEveryRank([&](Rank r) {
      const StepEngine::Result result = Verify(rig, r);
      if (r == 1) return;
      EXPECT_TRUE(errors::IsPeerLost(result.status)) << result.status;
      EXPECT_TRUE(result.plane_failed);
      EXPECT_EQ(result.outcome, StepOutcome::kNotApplied);
      EXPECT_FALSE(IsOpen(rig.rank(r).store->ledger().progress().outcome));
    });
  }
}

// The first of two that differ, by parts of parts.
TEST(StepEngine_VerifyOfManyParameters, NamesTheFirstThatDiffers) {
  GroupSpec group;
  for (int p = 0; p < 4200; ++p) {
    group.parameters.push_back({absl::StrCat("p", p), {1}, DType::kFloat32, "cpu"});
  }
  EngineRig::Options options;
  options.space = ParameterSpace({group});
  EngineRig rig(options);
  EXPECT_THAT(VerifyAll(rig), Each(absl::OkStatus()));
  TestReplica& replica = *rig.rank(1).replica;
  for (const int differing : {4199, 4198, 4031, 65, 64, 0}) {
    replica.SetParameter(differing, {12345});
    ExpectDifference(VerifyAll(rig), 1, differing);
  }
}

TEST(ReplicasDiffer_OfSeveralRanks, NamesThoseThatDoNotHaveWhatMostHave) {
  GroupSpec group;
  group.parameters.push_back({"fc", {1}, DType::kFloat32, "cpu"});
  const ParameterSpace space({group});
  const auto differing = [&](const std::vector<uint64_t>& by_rank) {
    std::vector<uint64_t> gathered(by_rank.size() * kComparedParts);
    for (size_t r = 0; r < by_rank.size(); ++r) gathered[r * kComparedParts] = by_rank[r];
    return errors::RanksOf(ReplicasDiffer(space, 0, gathered, 0));
  };
  EXPECT_THAT(differing({7, 9}), ElementsAre(1));
  EXPECT_THAT(differing({9, 7}), ElementsAre(1));
  EXPECT_THAT(differing({9, 7, 7}), ElementsAre(0));
  EXPECT_THAT(differing({9, 7, 7, 9}), ElementsAre(1, 2));
  EXPECT_THAT(differing({9, 7, 7, 7, 8}), ElementsAre(0, 4));
}

}  // namespace
}  // namespace optshard::testing
