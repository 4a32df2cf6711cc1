// Sparse gradients: only their rows are reduced, updated and published.

#include <functional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "common/gradient_mode.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/shard/engine/step_engine.h"
#include "tests/server/shard/engine/engine_rig.h"

namespace optshard::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// By parameter of TableSpace.
constexpr int kTables[] = {0, 1, 3};  // what can have a sparse gradient
constexpr int kWide = 0;
constexpr int kOfSgd = 3;
constexpr int kWithoutRows = 4;  // of sgd, too
constexpr int kOfAdam = 5;

ParameterSpec Spec(std::string name, std::vector<int64_t> shape) {
  ParameterSpec spec;
  spec.name = std::move(name);
  spec.shape = std::move(shape);
  return spec;
}

// A group each for sparse_adam, sgd and adam.
ParameterSpace TableSpace() {
  GroupSpec sparse;
  sparse.parameters = {Spec("wide.weight", {9, 700}), Spec("words.weight", {300, 5}),
                       Spec("none", {0, 5})};
  GroupSpec both;
  both.parameters = {Spec("tags.weight", {130, 2, 3}), Spec("bias", {10})};
  GroupSpec dense;
  dense.parameters = {Spec("fc.weight", {41, 23})};
  return ParameterSpace({sparse, both, dense});
}

EngineRig::Options TableOptions() {
  EngineRig::Options options;
  options.space = TableSpace();
  options.rules = {{"sparse_adam"}, {"sgd"}, {"adam"}};
  return options;
}

// Rows that no rank, one, some or all ranks have; no row at all in each third step.
bool HasRow(int step, Rank rank, int parameter, int64_t row) {
  if ((step + parameter) % 3 == 0) return false;
  return (row * 7 + int64_t{5} * step) % 4 == 0 && (row + rank + parameter) % 3 != 0;
}

void GiveSparse(EngineRig& rig, int step) {
  for (const int parameter : kTables) {
    rig.MakeSparse(parameter,
                   [&](Rank rank, int64_t row) { return HasRow(step, rank, parameter, row); });
  }
}

void ExpectSparseSteps(EngineRig& rig) {
  for (int step = 1; step <= 5; ++step) {
    rig.GiveGradients([](StepNumber at, Rank rank, int parameter) {
      return at != 4 || (rank + parameter) % 2 == 0;  // missing on some ranks, or on all
    });
    // The table of sgd has a dense one, too.
    for (const int parameter : kTables) {
      if (parameter == kOfSgd && step == 3) continue;
      rig.MakeSparse(parameter,
                     [&](Rank rank, int64_t row) { return HasRow(step, rank, parameter, row); });
    }
    ExpectAllOk(rig.Step());
    rig.StepOracleAlong();
    ASSERT_EQ(rig.DifferenceToOracle(), "") << "after step " << step;
  }
}

void ExpectSparseStep(EngineRig& rig) {
  rig.GiveAllGradients();
  for (const int parameter : kTables) {
    rig.MakeSparse(parameter, [](Rank, int64_t row) { return row % 5 == 2; });
  }
  ExpectAllOk(rig.Step());
  rig.StepOracleAlong();
  EXPECT_EQ(rig.DifferenceToOracle(), "");
}

using RowsCase = std::tuple<int, FakeHub::Mode, PartitionPolicy, std::vector<Placement>>;

class StepEngineRowsTest : public ::testing::TestWithParam<RowsCase> {};

TEST_P(StepEngineRowsTest, SparseSteps_ChangeTheirRowsAlone_ToTheBitsOfOneProcess) {
  EngineRig::Options options = TableOptions();
  std::tie(options.world_size, options.mode, options.policy, options.placements) = GetParam();
  options.threads = options.world_size;
  EngineRig rig(options);
  ExpectSparseSteps(rig);
}

INSTANTIATE_TEST_SUITE_P(
    All, StepEngineRowsTest,
    ::testing::Combine(::testing::Values(1, 2, 3),
                       ::testing::Values(FakeHub::Mode::kImmediate, FakeHub::Mode::kDelayed),
                       ::testing::Values(PartitionPolicy::kGreedy, PartitionPolicy::kBalanced,
                                         PartitionPolicy::kReplicated),
                       ::testing::Values(std::vector<Placement>{Placement::kFlatRegions},
                                         std::vector<Placement>{Placement::kReachable},
                                         std::vector<Placement>{Placement::kNodes},
                                         std::vector<Placement>{Placement::kScattered,
                                                                Placement::kFlatUnvouched})));

TEST(StepEngine_SparseGradientsOfEveryDType_WithMasters, EqualOneProcessToTheBit) {
  for (const bool masters : {false, true}) {
    for (int first = 0; first < 4; ++first) {
      EngineRig::Options options = TableOptions();
      options.space = WithEveryDType(TableSpace(), first);
      options.policy = PartitionPolicy::kBalanced;
      options.placements = {masters ? Placement::kReachable : Placement::kFlatRegions};
      options.state.master_weights = masters;
      EngineRig rig(options);
      if (masters) {
        for (const StepEngine::Result& result : rig.SyncParameters()) {
          ASSERT_TRUE(result.status.ok()) << result.status;
        }
      }
      ExpectSparseSteps(rig);
    }
  }
}

TEST(StepEngine_AveragedSparseGradients, WithTheSameRows_AreTaken) {
  for (const Placement placement :
       {Placement::kFlatRegions, Placement::kReachable, Placement::kNodes}) {
    EngineRig::Options options = TableOptions();
    options.gradient_mode = GradientMode::kAveraged;
    options.placements = {placement};
    EngineRig rig(options);
    ExpectSparseStep(rig);
    rig.GiveAllGradients();
    for (const int parameter : kTables) {
      rig.MakeSparse(parameter, [](Rank rank, int64_t row) { return row == 4 + rank; });
    }
    for (const StepEngine::Result& result : rig.Step()) {
      EXPECT_TRUE(result.refused);
      EXPECT_THAT(std::string(result.status.message()),
                  HasSubstr("parameter 0 \"wide.weight\" has row 4 on rank 0 but not on rank 1"));
    }
    EXPECT_EQ(rig.DifferenceToOracle(), "");
  }
}

// Of a step that the other ranks make, `other` is what rank 1 calls instead.
std::vector<StepEngine::Result> StepBut(EngineRig& rig,
                                        const std::function<StepEngine::Result(Rank)>& other) {
  std::vector<StepEngine::Result> results(rig.options().world_size);
  rig.OnEveryRank([&](Rank r) {
    if (r == 1) {
      results[r] = other(r);
      return;
    }
    StepInput input;
    input.replica = rig.rank(r).replica->tensors();
    input.regions = rig.rank(r).replica->regions();
    input.hyperparameters = rig.rank(r).hyperparameters;
    input.timeout = absl::Seconds(20);
    results[r] = rig.rank(r).engine->Step(input);
  });
  return results;
}

// The ranks tell each other their rows before a step, and so before any other call.
TEST(StepEngine_SomeStepSparselyWhileOthersSynchronise, AllAreToldWhoAndStepAgain) {
  EngineRig::Options options = TableOptions();
  options.placements = {Placement::kReachable};
  EngineRig rig(options);
  ExpectSparseStep(rig);
  const TestReplica& replica = *rig.rank(1).replica;
  for (const StepEngine::Result& result : StepBut(rig, [&](Rank r) {
         return rig.rank(r).engine->SyncParameters(replica.tensors(), replica.regions(),
                                                   absl::Seconds(20));
       })) {
    EXPECT_TRUE(errors::IsRanksDisagree(result.status)) << result.status;
  }
  ExpectSparseStep(rig);
}

// A rank without a trainer has no rows: that is no disagreement.
TEST(StepEngine_AveragedSparseGradients, WhileATrainerIsAway_AreRefusedForThatAlone) {
  EngineRig::Options options = TableOptions();
  options.gradient_mode = GradientMode::kAveraged;
  options.placements = {Placement::kReachable};
  EngineRig rig(options);
  ExpectSparseStep(rig);
  for (const StepEngine::Result& result : StepBut(rig, [&](Rank r) {
         return rig.rank(r).engine->Refuse(absl::UnavailableError("its trainer is gone"));
       })) {
    EXPECT_TRUE(errors::IsTrainerGone(result.status)) << result.status;
  }
  ExpectSparseStep(rig);
}

// All ranks refuse the step, and take the next one.
void ExpectRefusedOnce(EngineRig& rig, const std::string& text) {
  for (const StepEngine::Result& result : rig.Step()) {
    EXPECT_EQ(result.status.code(), absl::StatusCode::kInvalidArgument) << result.status;
    EXPECT_THAT(std::string(result.status.message()), HasSubstr(text));
    EXPECT_TRUE(result.refused);
  }
  EXPECT_EQ(rig.DifferenceToOracle(), "");
  rig.GiveAllGradients();
  GiveSparse(rig, 1);
  ExpectAllOk(rig.Step());
  rig.StepOracleAlong();
  EXPECT_EQ(rig.DifferenceToOracle(), "");
}

TEST(StepEngine_GradientSparseOnSomeRanks, NamesParameterAndRanks) {
  for (const Placement placement :
       {Placement::kFlatRegions, Placement::kReachable, Placement::kNodes}) {
    EngineRig::Options options = TableOptions();
    options.world_size = 3;
    options.placements = {placement};
    EngineRig rig(options);
    rig.GiveAllGradients();
    GiveSparse(rig, 1);
    rig.rank(1).replica->SetGradient(kOfSgd, Values(780));
    const std::vector<StepEngine::Result> results = rig.Step();
    EXPECT_TRUE(errors::IsRanksDisagree(results[0].status)) << results[0].status;
    EXPECT_THAT(errors::RanksOf(results[0].status), ElementsAre(1));
    ExpectRefusedOnce(rig,
                      "the gradient of parameter 3 \"tags.weight\" is sparse on ranks 0, 2 but "
                      "dense on rank 1; make it alike");
  }
}

TEST(StepEngine_GradientThatTheRuleDoesNotTake, NamesParameterRuleAndOthers) {
  const struct {
    int parameter;
    bool sparse;
    std::vector<std::string> said;
  } cases[] = {
      {kOfAdam,
       true,
       {"rank 1: parameter 5 \"fc.weight\": the gradient is sparse", "\"adam\"",
        "adagrad, sgd, sparse_adam", "to_dense()"}},
      {kWithoutRows,
       true,
       {"rank 1: parameter 4 \"bias\": the gradient is sparse, and the parameter has no rows: "
        "expected two dimensions or more"}},
      {kWide,
       false,
       {"rank 1: parameter 0 \"wide.weight\": the gradient is dense", "\"sparse_adam\""}},
  };
  for (const auto& refused : cases) {
    for (const std::string& text : refused.said) {
      EngineRig rig(TableOptions());
      rig.GiveAllGradients();
      GiveSparse(rig, 1);
      TestReplica& replica = *rig.rank(1).replica;
      if (refused.sparse) {
        replica.SetGradientRows(refused.parameter, [](int64_t) { return true; });
      } else {
        replica.SetGradient(refused.parameter, Values(6300));
      }
      ExpectRefusedOnce(rig, text);
    }
  }
}

}  // namespace
}  // namespace optshard::testing
