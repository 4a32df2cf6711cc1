// Staged state that takes the place of what the ranks have.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/byte_share.h"
#include "common/errors.h"
#include "server/shard/engine/step_engine.h"
#include "server/shard/state/shard_state.h"
#include "tests/server/shard/engine/engine_rig.h"
#include "tests/testing/state_share.h"

namespace optshard::testing {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kTimeout = absl::Seconds(20);

ShardState& StateOf(EngineRig& rig, Rank r) { return rig.rank(r).generation->state(); }

StateShare ShareOf(EngineRig& rig, Rank r) {
  return ReadShare(StateOf(rig, r), rig.shape()->spec(), r, rig.rank(r).replica->tensors());
}

// Also what other ranks own.
std::vector<Values> ParametersOf(EngineRig& rig, Rank r) {
  std::vector<Values> parameters;
  for (int p = 0; p < rig.space().parameter_count(); ++p) {
    parameters.push_back(rig.rank(r).replica->Parameter(p));
  }
  return parameters;
}

StepEngine::Result Finish(EngineRig& rig, Rank r, StepNumber step) {
  LoadInput load;
  load.step = step;
  load.hyperparameters = rig.rank(r).hyperparameters;
  load.replica = rig.rank(r).replica->tensors();
  load.regions = rig.rank(r).replica->regions();
  load.timeout = kTimeout;
  load.stream = rig.rank(r).stream.get();
  return rig.rank(r).engine->FinishLoading(load, StateOf(rig, r).staged());
}

StepEngine::Result Replace(EngineRig& rig, Rank r) {
  return rig.rank(r).engine->ReplaceState(StateOf(rig, r).staged(), kTimeout);
}

void Steps(EngineRig& rig, int steps) {
  for (int step = 0; step < steps; ++step) {
    rig.GiveAllGradients();
    ExpectAllOk(rig.Step());
    rig.StepOracleAlong();
  }
  ExpectAllOk(rig.Synchronize());
}

EngineRig::Options ThreeRanks(Placement placement = Placement::kFlatRegions) {
  EngineRig::Options options;
  options.world_size = 3;
  options.placements = {placement};
  return options;
}

// A job that has made three steps, and what its ranks had after the first one.
struct LoadRig {
  explicit LoadRig(const EngineRig::Options& options = ThreeRanks()) : rig(options) {
    ExpectAllOk(rig.SyncParameters());
    Steps(rig, 1);
    for (Rank r = 0; r < ranks(); ++r) {
      first.push_back(ShareOf(rig, r));
      first_parameters.push_back(ParametersOf(rig, r));
    }
    Steps(rig, 2);
    for (Rank r = 0; r < ranks(); ++r) {
      last.push_back(ShareOf(rig, r));
      last_parameters.push_back(ParametersOf(rig, r));
    }
  }

  int ranks() const { return rig.options().world_size; }
  absl::Status Stage(Rank r, Replacing what = Replacing::kAll) {
    return StageShare(StateOf(rig, r), first[r], what);
  }
  bool HasFirst(Rank r) {
    return ShareOf(rig, r) == first[r] && ParametersOf(rig, r) == first_parameters[r];
  }
  bool HasLast(Rank r) {
    return ShareOf(rig, r) == last[r] && ParametersOf(rig, r) == last_parameters[r];
  }
  ShardLedger& ledger(Rank r) { return rig.rank(r).store->ledger(); }

  EngineRig rig;
  std::vector<StateShare> first, last;
  std::vector<std::vector<Values>> first_parameters, last_parameters;
};

struct Shape {
  std::string name;
  EngineRig::Options options;
};

std::vector<Shape> Shapes() {
  std::vector<Shape> shapes;
  for (const Placement placement :
       {Placement::kFlatRegions, Placement::kScattered, Placement::kReachable, Placement::kOneCopy,
        Placement::kNodes}) {
    shapes.push_back({NameOf(placement), ThreeRanks(placement)});
  }
  for (const Placement placement :
       {Placement::kFlatRegions, Placement::kReachable, Placement::kNodes}) {
    Shape types{absl::StrCat("Types", NameOf(placement)), ThreeRanks(placement)};
    types.options.space = MixedDTypeSpace();
    types.options.policy = PartitionPolicy::kBalanced;
    types.options.state.master_weights = true;
    shapes.push_back(types);
  }
  Shape replicated{"Replicated", ThreeRanks()};
  replicated.options.policy = PartitionPolicy::kReplicated;
  shapes.push_back(replicated);
  Shape one{"OneRank", ThreeRanks()};
  one.options.world_size = 1;
  shapes.push_back(one);
  for (const Placement placement : {Placement::kFlatRegions, Placement::kScattered}) {
    Shape devices{absl::StrCat("Devices", NameOf(placement)), ThreeRanks(placement)};
    devices.options.on_devices = true;
    shapes.push_back(devices);
    devices.name += "Types";
    devices.options.space = MixedDTypeSpace();
    devices.options.state.master_weights = true;
    devices.options.state.format = StateFormat::kInt8Dynamic;
    shapes.push_back(devices);
    devices.name += "Offloaded";
    devices.options.state_on_host = true;
    shapes.push_back(devices);
  }
  return shapes;
}

class StepEngineLoad : public ::testing::TestWithParam<Shape> {};

TEST_P(StepEngineLoad, StagedStateAndParameters_AreThoseOfAllRanksWithTheirStep) {
  LoadRig job(GetParam().options);
  job.rig.OnEveryRank([&](Rank r) {
    ASSERT_EQ(job.Stage(r), absl::OkStatus());
    EXPECT_TRUE(job.HasLast(r));
    const StepEngine::Result done = Finish(job.rig, r, 40);
    EXPECT_EQ(done.status, absl::OkStatus());
    EXPECT_EQ(done.info.step, 40u);
  });
  for (Rank r = 0; r < job.ranks(); ++r) {
    EXPECT_TRUE(job.HasFirst(r)) << "rank " << r;
    EXPECT_EQ(job.ledger(r).progress().finished, 40u);
    EXPECT_EQ(job.ledger(r).progress().outcome, StepOutcome::kIdle);
  }
  job.rig.GiveAllGradients();
  for (const StepEngine::Result& result : job.rig.Step()) {
    EXPECT_EQ(result.status, absl::OkStatus());
    EXPECT_EQ(result.info.step, 41u);
  }
}

TEST_P(StepEngineLoad, StagedState_IsThatOfAllRanks_AndParametersStay) {
  LoadRig job(GetParam().options);
  job.rig.OnEveryRank([&](Rank r) {
    ASSERT_EQ(job.Stage(r, Replacing::kState), absl::OkStatus());
    EXPECT_EQ(Replace(job.rig, r).status, absl::OkStatus());
  });
  for (Rank r = 0; r < job.ranks(); ++r) {
    EXPECT_TRUE(ShareOf(job.rig, r).slots == job.first[r].slots) << "rank " << r;
    EXPECT_EQ(ParametersOf(job.rig, r), job.last_parameters[r]);
    EXPECT_EQ(job.ledger(r).progress().finished, 3u);
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, StepEngineLoad, ::testing::ValuesIn(Shapes()),
                         [](const auto& test) { return test.param.name; });

// --- What is refused leaves everything as it was.

TEST(StepEngine_LoadThatARankCannotFinish, IsRefusedByAllAndChangesNothing) {
  LoadRig job;
  const auto refused = [&](Rank r, const StepEngine::Result& result, absl::string_view said) {
    EXPECT_TRUE(result.refused);
    EXPECT_THAT(std::string(result.status.message()), HasSubstr(std::string(said)));
    EXPECT_TRUE(job.HasLast(r));
    EXPECT_EQ(job.ledger(r).progress().outcome, StepOutcome::kIdle);
    EXPECT_EQ(job.rig.rank(r).engine->finished(), 3u);
  };
  job.rig.OnEveryRank([&](Rank r) {
    // Not what is staged, or nothing.
    ASSERT_EQ(job.Stage(r, r == 1 ? Replacing::kState : Replacing::kAll), absl::OkStatus());
    StepEngine::Result result = Finish(job.rig, r, 40);
    EXPECT_TRUE(absl::IsAborted(result.status)) << result.status;
    refused(r, result,
            "rank 1: the end of the loading of a checkpoint, of which nothing is staged");
    result = Replace(job.rig, r);
    refused(r, result, "the end of the loading of a state dict, of which nothing is staged");
    ASSERT_EQ(job.Stage(r), absl::OkStatus());

    result = Finish(job.rig, r, r == 1 ? 41 : 40);
    EXPECT_TRUE(errors::IsRanksDisagree(result.status)) << result.status;
    refused(r, result, "rank 0 goes on after step 40, rank 1 after step 41");
    result = Finish(job.rig, r, StepNumber{1} << 60);
    EXPECT_TRUE(absl::IsInvalidArgument(result.status)) << result.status;
    refused(r, result, "expected 0 to 9007199254740991");

    // A rank that has begun the load again, and one that loads something else.
    std::string bytes = "again";
    result = r == 1
                 ? job.rig.rank(r).engine->ShareBytes(
                       {ShareCall::kLoad, 0, absl::MakeSpan(&bytes[0], bytes.size()), 0}, kTimeout)
                 : Finish(job.rig, r, 40);
    EXPECT_TRUE(absl::IsAborted(result.status)) << result.status;
    refused(r, result, "repeat the call on all ranks");
    ASSERT_EQ(job.Stage(r, r == 1 ? Replacing::kState : Replacing::kAll), absl::OkStatus());
    result = r == 1 ? Replace(job.rig, r) : Finish(job.rig, r, 40);
    EXPECT_TRUE(absl::IsAborted(result.status)) << result.status;
    refused(r, result, "repeat the call on all ranks");
  });
  Steps(job.rig, 1);
  EXPECT_EQ(job.rig.DifferenceToOracle(), "");
}

TEST(StepEngine_LoadOfTornState, MakesItWhole) {
  LoadRig job;
  job.rig.OnEveryRank([&](Rank r) {
    job.ledger(r).SetProgress({3, StepOutcome::kTorn});
    ASSERT_EQ(job.Stage(r), absl::OkStatus());
    EXPECT_EQ(Finish(job.rig, r, 1).status, absl::OkStatus());
  });
  for (Rank r = 0; r < job.ranks(); ++r) EXPECT_TRUE(job.HasFirst(r));
}

class StepEngineTornState : public ::testing::TestWithParam<Placement> {};

// Ranks learn that it is torn one after the other: some load already while others still step.
TEST_P(StepEngineTornState, LoadsWhileAnotherRankSteps_AllAreToldAtOnceAndLoad) {
  LoadRig job(ThreeRanks(GetParam()));
  job.rig.GiveAllGradients();
  job.rig.OnEveryRank([&](Rank r) {
    job.ledger(r).SetProgress({3, StepOutcome::kTorn});
    StepInput step;
    step.replica = job.rig.rank(r).replica->tensors();
    step.regions = job.rig.rank(r).replica->regions();
    step.hyperparameters = job.rig.rank(r).hyperparameters;
    step.timeout = kTimeout;
    std::string bytes = "of a load";
    const ByteShare share = {ShareCall::kLoad, 0, absl::MakeSpan(&bytes[0], bytes.size())};
    StepEngine& engine = *job.rig.rank(r).engine;
    const StepEngine::Result result =
        r == 1 ? engine.Step(step) : engine.ShareBytes(share, kTimeout);
    EXPECT_TRUE(errors::IsTornStep(result.status)) << result.status;
    EXPECT_TRUE(result.refused);
    ASSERT_EQ(job.Stage(r), absl::OkStatus());
    EXPECT_EQ(Finish(job.rig, r, 1).status, absl::OkStatus());
  });
  for (Rank r = 0; r < job.ranks(); ++r) EXPECT_TRUE(job.HasFirst(r));
}

INSTANTIATE_TEST_SUITE_P(Placements, StepEngineTornState,
                         ::testing::Values(Placement::kFlatRegions, Placement::kReachable,
                                           Placement::kNodes),
                         [](const auto& test) { return NameOf(test.param); });

// --- A rank that is lost at one of its operations on the plane.

struct Loss {
  Replacing what = Replacing::kAll;
  Placement placement = Placement::kFlatRegions;
  bool on_devices = false;
  bool state_on_host = false;
};

class StepEngineLoadLoss : public ::testing::TestWithParam<Loss> {
 protected:
  // Whether rank 1 was lost.
  bool LoseAt(int64_t operation) {
    SCOPED_TRACE(absl::StrCat("operation ", operation));
    EngineRig::Options options = ThreeRanks(GetParam().placement);
    options.on_devices = GetParam().on_devices;
    options.state_on_host = GetParam().state_on_host;
    LoadRig job(options);
    FakeHub& hub = options.on_devices ? job.rig.devices().hosts() : job.rig.hub();
    hub.KillAt(1, hub.OperationsStarted(1) + operation);
    bool lost = false;
    job.rig.OnEveryRank([&](Rank r) {
      ASSERT_EQ(job.Stage(r, GetParam().what), absl::OkStatus());
      const StepEngine::Result result =
          GetParam().what == Replacing::kAll ? Finish(job.rig, r, 40) : Replace(job.rig, r);
      if (r == 1) {
        lost = !result.status.ok();
        return;
      }
      if (result.status.ok()) return;
      EXPECT_TRUE(errors::IsPeerLost(result.status)) << result.status;
      if (GetParam().what == Replacing::kState) {
        EXPECT_EQ(result.outcome, StepOutcome::kNotApplied);
        EXPECT_EQ(ParametersOf(job.rig, r), job.last_parameters[r]);
      }
      const StepOutcome kept = job.ledger(r).progress().outcome;
      EXPECT_TRUE(kept == StepOutcome::kIdle || operation != kVote);
      if (kept == StepOutcome::kIdle) {
        // It has not got the votes, and nobody begins without it.
        EXPECT_LE(operation, kMarks);
        EXPECT_EQ(result.outcome, StepOutcome::kNotApplied);
        EXPECT_TRUE(job.HasLast(r));
      } else if (kept == StepOutcome::kApplied) {
        EXPECT_EQ(result.outcome, StepOutcome::kApplied);
        EXPECT_EQ(job.ledger(r).progress().finished, 39u);
        // Others may be about to publish theirs.
        EXPECT_TRUE(ShareOf(job.rig, r) == job.first[r]);
      } else {
        EXPECT_EQ(job.ledger(r).replacing(), GetParam().what);
        // All marks come before the first change.
        if (operation == kMarks) {
          job.ledger(r).SetReplacing(Replacing::kNothing);
          EXPECT_TRUE(job.HasLast(r));
        }
      }
    });
    return lost;
  }

  static constexpr int64_t kVote = 0;
  static constexpr int64_t kMarks = 1;
};

TEST_P(StepEngineLoadLoss, AtAnyOperation_NothingHasChangedOrItIsKnownAsTorn) {
  int64_t operations = 0;
  while (operations < 200 && LoseAt(operations) && !HasFailure()) ++operations;
  EXPECT_GE(operations, 3);
  EXPECT_LT(operations, 200);
}

INSTANTIATE_TEST_SUITE_P(Losses, StepEngineLoadLoss,
                         ::testing::Values(Loss{Replacing::kAll, Placement::kFlatRegions},
                                           Loss{Replacing::kAll, Placement::kReachable},
                                           Loss{Replacing::kAll, Placement::kNodes},
                                           Loss{Replacing::kAll, Placement::kFlatRegions, true},
                                           Loss{Replacing::kAll, Placement::kFlatRegions, true,
                                                true},
                                           Loss{Replacing::kState, Placement::kFlatRegions},
                                           Loss{Replacing::kState, Placement::kReachable},
                                           Loss{Replacing::kState, Placement::kFlatRegions, true}),
                         [](const auto& test) {
                           return absl::StrCat(test.param.what == Replacing::kAll ? "All" : "State",
                                               NameOf(test.param.placement),
                                               test.param.on_devices ? "OnDevices" : "",
                                               test.param.state_on_host ? "Offloaded" : "");
                         });

}  // namespace
}  // namespace optshard::testing
