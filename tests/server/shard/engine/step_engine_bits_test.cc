// Steps over everything that must not change their bits: they equal one process's.

#include <xmmintrin.h>

#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/gradient_mode.h"
#include "gtest/gtest.h"
#include "server/shard/engine/step_engine.h"
#include "tests/server/shard/engine/engine_rig.h"
#include "tests/testing/rule_shape.h"

namespace optshard::testing {
namespace {

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

// Every rank has every gradient.
void ExpectStepsOfOneProcess(EngineRig& rig, int steps) {
  for (int step = 1; step <= steps; ++step) {
    rig.GiveAllGradients();
    ExpectAllOk(rig.Step());
    rig.StepOracleAlong();
    ASSERT_EQ(rig.DifferenceToOracle(), "") << "after step " << step;
  }
}

using BitsCase =
    std::tuple<int, FakeHub::Mode, GradientMode, PartitionPolicy, std::vector<Placement>>;

class StepEngineBitsTest : public ::testing::TestWithParam<BitsCase> {};

// Sanitizers look at the ways, and those are the same for other values.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr uint64_t kFirstSeed = 2;
#else
constexpr uint64_t kFirstSeed = 1;
#endif

TEST_P(StepEngineBitsTest, FourSteps_EqualOneProcessToTheBit) {
  for (uint64_t seed = kFirstSeed; seed <= 2; ++seed) {
    EngineRig::Options options;
    std::tie(options.world_size, options.mode, options.gradient_mode, options.policy,
             options.placements) = GetParam();
    options.threads = seed == 1 ? 1 : 3;
    options.seed = seed;
    EngineRig rig(options);
    ExpectStepsOfOneProcess(rig, 4);
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
                                         std::vector<Placement>{Placement::kNodes},
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
  for (const Placement placement :
       {Placement::kFlatRegions, Placement::kReachable, Placement::kNodes}) {
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

// Nodes with another number of ranks each, one with a single rank, and ranks that are not in order.
TEST(StepEngineBits_NodesOfSeveralSizes, EqualOneProcessToTheBit) {
  for (const std::vector<std::string>& nodes :
       {std::vector<std::string>{"a", "b", "b", "b", "a", "c"}, {"a", "b", "c", "a", "b", "c"}}) {
    for (const PartitionPolicy policy :
         {PartitionPolicy::kGreedy, PartitionPolicy::kBalanced, PartitionPolicy::kReplicated}) {
      for (const FakeHub::Mode mode : {FakeHub::Mode::kImmediate, FakeHub::Mode::kDelayed}) {
        EngineRig::Options options;
        options.world_size = 6;
        options.nodes = nodes;
        options.policy = policy;
        options.mode = mode;
        options.placements = {Placement::kNodes};
        options.rules = {{"adam"}, {"muon"}};
        if (policy == PartitionPolicy::kBalanced) options.rules = {{"adam"}};
        options.space = WithEveryDType(MixedGroups(options.rules));
        SCOPED_TRACE(PolicyName(policy));
        EngineRig rig(options);
        for (int step = 1; step <= 3; ++step) {
          rig.GiveGradients([](StepNumber number, Rank rank, int parameter) {
            return (number + static_cast<StepNumber>(rank + parameter)) % 4 != 0;
          });
          ExpectAllOk(rig.Step());
          rig.StepOracleAlong();
          ASSERT_EQ(rig.DifferenceToOracle(), "") << "after step " << step;
        }
      }
    }
  }
}

TEST(StepEngineBits_OneCopyOfTheParameters, EqualOneProcessToTheBit) {
  for (const PartitionPolicy policy : {PartitionPolicy::kGreedy, PartitionPolicy::kBalanced}) {
    EngineRig::Options options;
    options.world_size = 3;
    options.policy = policy;
    options.placements = {Placement::kOneCopy};
    EngineRig rig(options);
    ExpectStepsOfOneProcess(rig, 3);
  }
}

TEST(StepEngineBits_EveryRuleInAGroupOfItsOwn, EqualOneProcessToTheBit) {
  EngineRig::Options options;
  options.world_size = 3;
  options.rules = RulesFor(options.policy);
  options.space = MixedGroups(options.rules);
  EngineRig rig(options);
  ExpectStepsOfOneProcess(rig, 3);
}

// Every rule with every dtype, several in one group, over what moves gradients and parameters in
// another way.
TEST(StepEngineBits_EveryDType, EqualOneProcessToTheBit) {
  const std::vector<std::vector<Placement>> placements = {
      {Placement::kFlatRegions},
      {Placement::kReachable},
      {Placement::kOneCopy},
      {Placement::kNodes},
      {Placement::kScattered, Placement::kFlatRegions, Placement::kFlatUnvouched}};
  for (const int world_size : {1, 2, 3}) {
    for (const std::vector<Placement>& placement : placements) {
      for (const auto& [mode, policy] :
           {std::make_pair(GradientMode::kReduce, PartitionPolicy::kBalanced),
            std::make_pair(GradientMode::kReduce, PartitionPolicy::kGreedy),
            std::make_pair(GradientMode::kAveraged, PartitionPolicy::kGreedy)}) {
        EngineRig::Options options;
        options.world_size = world_size;
        options.policy = policy;
        options.gradient_mode = mode;
        options.placements = placement;
        options.rules = RulesFor(options.policy);
        options.space = WithEveryDType(MixedGroups(options.rules), world_size);
        options.threads = world_size;
        SCOPED_TRACE(absl::StrCat(world_size, " ranks, ", NameOf(placement[0]),
                                  mode == GradientMode::kReduce ? ", reduce, " : ", averaged, ",
                                  PolicyName(policy)));
        EngineRig rig(options);
        for (int step = 1; step <= 3; ++step) {
          rig.GiveGradients([](StepNumber number, Rank rank, int parameter) {
            return (number + static_cast<StepNumber>(rank + parameter)) % 4 != 0;
          });
          if (mode == GradientMode::kAveraged) rig.GiveAllGradients();
          ExpectAllOk(rig.Step());
          rig.StepOracleAlong();
          ASSERT_EQ(rig.DifferenceToOracle(), "") << "after step " << step;
        }
      }
    }
  }
}

// Masters and slots in bfloat16, over the ways of a step.
TEST(StepEngineBits_StateOptions, EqualOneProcessToTheBit) {
  for (const bool master_weights : {false, true}) {
    for (const StateFormat format : {StateFormat::kFloat32, StateFormat::kBFloat16}) {
      for (const Placement placement : {Placement::kFlatRegions, Placement::kReachable,
                                        Placement::kOneCopy, Placement::kNodes}) {
        EngineRig::Options options;
        options.world_size = 3;
        options.policy = PartitionPolicy::kBalanced;
        options.rules = RulesFor(options.policy);
        options.space = WithEveryDType(MixedGroups(options.rules), master_weights ? 2 : 0);
        options.placements = {placement};
        options.state.master_weights = master_weights;
        options.state.format = format;
        SCOPED_TRACE(absl::StrCat(master_weights ? "with masters, " : "", NameOf(format),
                                  " state, ", NameOf(placement)));
        EngineRig rig(options);
        // That is when masters begin.
        ExpectAllOk(rig.SyncParameters());
        ExpectStepsOfOneProcess(rig, 4);
      }
    }
  }
}

// Likewise by rules that need whole parameters, which some policies do not cut.
TEST(StepEngineBits_StateOptionsOfWholeParameters, EqualOneProcessToTheBit) {
  for (const int master_bits : {0, 24, 32}) {
    for (const StateFormat format : {StateFormat::kFloat32, StateFormat::kBFloat16}) {
      for (const Placement placement :
           {Placement::kFlatRegions, Placement::kReachable, Placement::kNodes}) {
        EngineRig::Options options;
        options.world_size = 3;
        options.rules = {{"adafactor"}, {"lamb"}};
        options.space = WithEveryDType(MixedGroups(options.rules), master_bits);
        options.placements = {placement};
        options.threads = 2;
        options.state.master_weights = master_bits != 0;
        if (master_bits == 24) options.state.master_weight_bits = 24;
        options.state.format = format;
        SCOPED_TRACE(absl::StrCat("masters of ", master_bits, " bits, ", NameOf(format), " state, ",
                                  NameOf(placement)));
        EngineRig rig(options);
        ExpectAllOk(rig.SyncParameters());
        ExpectStepsOfOneProcess(rig, 3);
      }
    }
  }
}

// The rules that work in 8 bits, with all of their slots.
std::vector<GroupRule> RulesInEightBits(PartitionPolicy policy) {
  std::vector<GroupRule> rules = {{"adam"}, {"adamw"}, {"lion"}, {"sgd"}};
  rules[0].hyperparameters.Set("amsgrad", true);
  rules[3].hyperparameters.Set("momentum", 0.9);
  if (policy != PartitionPolicy::kBalanced) {
    rules.push_back({"lamb"});
    rules.push_back({"muon"});
  }
  return rules;
}

// A group for each of the rules, with parameters whose slots are coded and others.
ParameterSpace LargeGroups(const std::vector<GroupRule>& rules) {
  GroupSpec group;
  const auto add = [&group](std::string name, int64_t elements, DType dtype) {
    ParameterSpec spec;
    spec.name = std::move(name);
    spec.shape = {elements};
    spec.dtype = dtype;
    group.parameters.push_back(spec);
  };
  add("embedding", 40007, DType::kFloat32);
  add("just.too.small", 4095, DType::kFloat32);
  add("bias", 3, DType::kBFloat16);
  add("half", 9001, DType::kBFloat16);
  add("least", 4096, DType::kFloat16);
  add("double", 5000, DType::kFloat64);
  std::vector<GroupSpec> groups(rules.size(), group);
  for (size_t g = 0; g < rules.size(); ++g) {
    const UpdateRule& rule = **RuleRegistry::Find(rules[g].name);
    for (ParameterSpec& parameter : groups[g].parameters) {
      parameter.name = absl::StrCat(g, ".", parameter.name);
      parameter.shape = ShapeFor(rule, std::move(parameter.shape));
    }
  }
  return ParameterSpace(std::move(groups));
}

// Blocks lie on the grid of the whole parameter, whoever owns which part of it and however buckets
// and threads cut that.
TEST(StepEngineBits_StateInEightBits, EqualsOneProcessToTheBit) {
  struct Way {
    int world_size;
    PartitionPolicy policy;
    Placement placement;
    int threads;
    int64_t bucket_bytes;
  };
  const Way kWays[] = {
      {1, PartitionPolicy::kGreedy, Placement::kFlatRegions, 3, 1 << 20},
      {2, PartitionPolicy::kBalanced, Placement::kReachable, 2, 1 << 17},
      {3, PartitionPolicy::kBalanced, Placement::kFlatRegions, 1, 5000},
      {3, PartitionPolicy::kGreedy, Placement::kOneCopy, 1, 2048},
      {4, PartitionPolicy::kBalanced, Placement::kNodes, 2, 5000},
      {2, PartitionPolicy::kReplicated, Placement::kReachable, 1, 4096},
      {5, PartitionPolicy::kBalanced, Placement::kScattered, 1, 1 << 14},
  };
  for (const StateFormat format : {StateFormat::kInt8Dynamic, StateFormat::kInt8Companded}) {
    for (const int master_bits : {0, 24, 32}) {
      for (const Way& way : kWays) {
        EngineRig::Options options;
        options.rules = RulesInEightBits(way.policy);
        options.space = LargeGroups(options.rules);
        options.world_size = way.world_size;
        options.policy = way.policy;
        options.placements = {way.placement};
        options.threads = way.threads;
        options.buckets = {way.bucket_bytes, 512};
        options.state.format = format;
        options.state.master_weights = master_bits != 0;
        if (master_bits == 24) options.state.master_weight_bits = 24;
        SCOPED_TRACE(absl::StrCat(NameOf(format), ", masters of ", master_bits, " bits, ",
                                  way.world_size, " ranks, ", PolicyName(way.policy), ", ",
                                  NameOf(way.placement)));
        EngineRig rig(options);
        ExpectAllOk(rig.SyncParameters());
        ExpectStepsOfOneProcess(rig, 3);
      }
    }
  }
}

// torch.set_flush_denormal on some ranks; and another rounding, which shows in ordinary values,
// too.
TEST(StepEngineBits_TrainersInOtherFloatingPointModes, EqualOneProcessToTheBit) {
  constexpr unsigned kFlushDenormals = _MM_FLUSH_ZERO_ON | 0x0040;  // and take them for zero
  struct Case {
    std::string rule;
    int gradient_exponent;
    double lr;
  };
  // Gradients that are denormals; a coefficient that is one.
  for (const Case& c : {Case{"adam", -135, 1e-3}, Case{"sgd", 100, 1e-40}}) {
    for (const Placement placement :
         {Placement::kReachable, Placement::kFlatRegions, Placement::kNodes}) {
      for (const PartitionPolicy policy :
           {PartitionPolicy::kBalanced, PartitionPolicy::kReplicated}) {
        for (const FakeHub::Mode mode : {FakeHub::Mode::kImmediate, FakeHub::Mode::kDelayed}) {
          SCOPED_TRACE(absl::StrCat(c.rule, " ", NameOf(placement), PolicyName(policy), " ",
                                    ModeName(mode)));
          EngineRig::Options options;
          options.world_size = 3;
          options.mode = mode;
          options.policy = policy;
          options.placements = {placement};
          options.rules = {{c.rule}};
          options.rules[0].hyperparameters.Set("lr", c.lr);
          options.gradient_exponent = c.gradient_exponent;
          options.floating_point_modes = {0, kFlushDenormals, kFlushDenormals | _MM_ROUND_DOWN};
          EngineRig rig(options);
          ExpectStepsOfOneProcess(rig, 2);
        }
      }
    }
  }
}

TEST(StepEngineBits_SlotsThatDifferByGroup, EqualOneProcessToTheBit) {
  EngineRig::Options options;
  options.world_size = 3;
  options.rules = {{"adam"}, {"adam"}};
  options.rules[1].hyperparameters.Set("amsgrad", true);
  EngineRig rig(options);
  ExpectStepsOfOneProcess(rig, 3);
}

TEST(StepEngineBits_SmallestWindow, EqualOneProcessToTheBit) {
  EngineRig::Options options;
  options.world_size = 3;
  options.window = 1;
  options.staging_buffers = 1;
  for (const Placement placement : {Placement::kScattered, Placement::kNodes}) {
    options.placements = {placement};
    EngineRig rig(options);
    ExpectStepsOfOneProcess(rig, 2);
  }
}

}  // namespace
}  // namespace optshard::testing
