// State dicts of PyTorch's own optimizers (tests/client/golden/make_state_dicts.py).
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/jit/serialization/pickle.h>

#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <vector>

#include "client/rule_options.h"
#include "client/sharded_optimizer.h"
#include "client/state_dict.h"
#include "server/update/update_rule.h"
#include "tests/testing/client_ranks.h"
#include "tests/testing/rule_table.h"

namespace optshard {
namespace {

using testing::ExpectAllOk;
using testing::RunRanks;

constexpr char kPath[] = "tests/client/golden/torch_state_dicts.pt";

struct Golden {
  std::string rule;
  RuleOptions options;
  std::vector<at::Tensor> half;
  StateDict half_dict;
  std::vector<at::Tensor> end;
  StateDict end_dict;
};

c10::IValue At(const c10::IValue& dict, const char* name) { return dict.toGenericDict().at(name); }

std::vector<at::Tensor> TensorsOf(const c10::IValue& list) {
  std::vector<at::Tensor> tensors;
  for (const c10::IValue& each : list.toListRef()) tensors.push_back(each.toTensor());
  return tensors;
}

std::vector<Golden> ReadGoldens() {
  std::ifstream file(kPath, std::ios::binary);
  const std::vector<char> bytes((std::istreambuf_iterator<char>(file)),
                                std::istreambuf_iterator<char>());
  const c10::IValue all = torch::jit::pickle_load(bytes);
  std::vector<Golden> goldens;
  for (const auto& entry : all.toGenericDict()) {
    const std::string& rule = entry.key().toStringRef();
    RuleOptions options(rule);
    for (const auto& option : At(entry.value(), "options").toGenericDict()) {
      const c10::IValue& value = option.value();
      if (value.isBool()) {
        options.Set(option.key().toStringRef(), value.toBool());
      } else {
        options.Set(option.key().toStringRef(), value.toDouble());
      }
    }
    goldens.push_back({rule, options, TensorsOf(At(entry.value(), "half")),
                       *StateDictFromIValue(At(entry.value(), "half_dict")),
                       TensorsOf(At(entry.value(), "end")),
                       *StateDictFromIValue(At(entry.value(), "end_dict"))});
  }
  return goldens;
}

void GiveGradient(const at::Tensor& parameter, int step, size_t index, bool sparse) {
  const at::Tensor gradient = at::arange(parameter.numel())
                                  .add(int64_t{7} * step + 3 * static_cast<int64_t>(index))
                                  .remainder(11)
                                  .sub(5)
                                  .div(8)
                                  .reshape(parameter.sizes());
  parameter.mutable_grad() = sparse ? gradient.to_sparse(1) : gradient;
}

// `tolerance` is 0 for equal.
void ExpectSameState(const StateDict& ours, const StateDict& theirs, double tolerance) {
  ASSERT_EQ(ours.state.size(), theirs.state.size());
  for (const auto& [index, values] : theirs.state) {
    const StateValues& own = ours.state.at(index);
    // Ours has "step" with every rule.
    EXPECT_EQ(own.size(), values.size() + (values.count("step") == 0 ? 1 : 0));
    for (const auto& [name, value] : values) {
      SCOPED_TRACE(name);
      ASSERT_EQ(own.count(name), 1u);
      const at::Tensor& actual = own.at(name).toTensor();
      if (!value.isTensor()) {
        EXPECT_EQ(actual.item<double>(), value.toScalar().toDouble());
        continue;
      }
      const at::Tensor expected = value.toTensor().to(actual.scalar_type());
      EXPECT_EQ(actual.sizes(), expected.sizes());
      EXPECT_TRUE(tolerance == 0 ? at::equal(actual, expected)
                                 : at::allclose(actual, expected, tolerance, tolerance));
    }
  }
  for (size_t g = 0; g < theirs.param_groups.size(); ++g) {
    EXPECT_EQ(ours.param_groups[g].params, theirs.param_groups[g].params);
    for (const auto& [name, value] : theirs.param_groups[g].options) {
      if (value.isDouble()) {
        EXPECT_EQ(ours.param_groups[g].options.at(name).toDouble(), value.toDouble()) << name;
      }
    }
  }
}

TEST(TorchStateDictsTest, Loaded_GoOnAsTorch_AndComeBackWithItsKeysAndShapes) {
  for (const Golden& golden : ReadGoldens()) {
    SCOPED_TRACE(golden.rule);
    if (!testing::GoesBesideLibTorch(**RuleRegistry::Find(golden.rule))) continue;
    const bool sparse = golden.rule == "sparse_adam";
    ExpectAllOk(RunRanks(2, [&](const ShardedOptimizerOptions& options) {
      std::vector<at::Tensor> parameters;
      for (const at::Tensor& each : golden.half) {
        parameters.push_back(each.clone().set_requires_grad(true));
      }
      ShardedOptimizer optimizer(parameters, golden.options, options);
      optimizer.load_state_dict(golden.half_dict);
      optimizer.consolidate_state_dict(-1);
      ExpectSameState(optimizer.state_dict(), golden.half_dict, 0);
      for (int step = 3; step <= 4; ++step) {
        for (size_t i = 0; i < parameters.size(); ++i) {
          GiveGradient(parameters[i], step, i, sparse);
        }
        optimizer.step();
      }
      // Muon's is computed in bfloat16 there.
      const double tolerance = golden.rule == "muon" ? 0.01 : 1e-5;
      for (size_t i = 0; i < parameters.size(); ++i) {
        EXPECT_TRUE(at::allclose(parameters[i], golden.end[i], tolerance, tolerance))
            << "parameter " << i;
      }
      optimizer.consolidate_state_dict(-1);
      ExpectSameState(optimizer.state_dict(), golden.end_dict, tolerance);
      optimizer.Close();
    }));
  }
}

TEST(TorchStateDictsTest, CoverEveryRuleThatPyTorchHas) {
  std::set<std::string> covered = {"lamb", "lion"};  // which it does not have
  for (const Golden& golden : ReadGoldens()) covered.insert(golden.rule);
  for (const UpdateRule* rule : RuleRegistry::All()) {
    EXPECT_EQ(covered.count(rule->spec().name), 1u) << rule->spec().name;
  }
}

}  // namespace
}  // namespace optshard
