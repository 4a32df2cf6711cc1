// Param groups that are added to an optimizer whose state has a format of its own.
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/sharded_optimizer.h"
#include "tests/testing/client_ranks.h"

namespace optshard {
namespace {

using testing::ExpectAllOk;
using testing::RunRanks;
using testing::RunRanksOfOneHost;
using torch::optim::OptimizerParamGroup;

constexpr int kSteps = 4;
constexpr int kAdded = 3;  // before this step

struct FormatCase {
  const char* name;
  at::ScalarType type;
  std::function<void(ShardedOptimizerOptions&)> set;
};

class AddedGroupsFormats : public ::testing::TestWithParam<FormatCase> {
 protected:
  static std::vector<at::Tensor> Parameters() {
    std::vector<at::Tensor> parameters;
    for (const int64_t elements : {5000, 4100}) {
      const at::Tensor values = at::arange(elements).remainder(97).div(32).sub(1);
      parameters.push_back(values.to(GetParam().type).set_requires_grad(true));
    }
    return parameters;
  }
  // Numbers that all types hold exactly, of every rank the same.
  static void GiveGradient(ShardedOptimizer& optimizer, bool main, const at::Tensor& parameter,
                           int step) {
    const at::Tensor gradient =
        at::arange(parameter.numel()).add(step).remainder(13).sub(6).div(8).to(GetParam().type);
    if (main) {
      optimizer.main_grad(parameter).copy_(gradient);
    } else {
      parameter.mutable_grad() = gradient;
    }
  }
};

TEST_P(AddedGroupsFormats, AddedBetweenSteps_BitsOfOptimizersThatBeginThen) {
  const RuleOptions adam = RuleOptions("adam").Set("lr", 0.25);
  const std::vector<at::Tensor> expected = Parameters();
  ExpectAllOk(RunRanks(1, [&](ShardedOptimizerOptions options) {
    GetParam().set(options);
    for (size_t i = 0; i < expected.size(); ++i) {
      options.optimizer = absl::StrCat("of parameter ", i);
      ShardedOptimizer optimizer({expected[i]}, adam, options);
      for (int step = i == 0 ? 1 : kAdded; step <= kSteps; ++step) {
        GiveGradient(optimizer, options.main_gradients, expected[i], step);
        optimizer.step();
      }
    }
  }));
  ExpectAllOk(RunRanksOfOneHost(2, [&](ShardedOptimizerOptions options) {
                GetParam().set(options);
                const std::vector<at::Tensor> all = Parameters();
                ShardedOptimizer optimizer({all[0]}, adam, options);
                for (int step = 1; step <= kSteps; ++step) {
                  if (step == kAdded) {
                    optimizer.add_param_group(OptimizerParamGroup(std::vector<at::Tensor>{all[1]}));
                  }
                  for (size_t i = 0; i < optimizer.param_groups().size(); ++i) {
                    GiveGradient(optimizer, options.main_gradients, all[i], step);
                  }
                  optimizer.step();
                }
                for (size_t i = 0; i < all.size(); ++i) {
                  EXPECT_TRUE(at::equal(all[i], expected[i])) << "parameter " << i;
                }
              }).thrown);
}

INSTANTIATE_TEST_SUITE_P(
    Cases, AddedGroupsFormats,
    ::testing::Values(FormatCase{"Masters", at::kBFloat16,
                                 [](auto& options) { options.master_weights = true; }},
                      FormatCase{"MastersOf24Bits", at::kBFloat16,
                                 [](auto& options) {
                                   options.master_weights = true;
                                   options.master_weight_bits = 24;
                                 }},
                      FormatCase{"Published", at::kFloat,
                                 [](auto& options) { options.publish_dtype = "bfloat16"; }},
                      FormatCase{"MainGradients", at::kBFloat16,
                                 [](auto& options) { options.main_gradients = true; }},
                      FormatCase{"EightBits", at::kFloat,
                                 [](auto& options) { options.state_dtype = "int8_companded"; }}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace optshard
