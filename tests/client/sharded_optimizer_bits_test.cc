// That a sharded run has the bits of the unsharded one, whatever the policy, the memory and the
// number of ranks.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>

#include <cmath>
#include <cstring>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/sharded_optimizer.h"
#include "server/update/update_rule.h"
#include "tests/client/attached_options.h"
#include "tests/server/node/node_rig.h"
#include "tests/testing/client_ranks.h"

namespace optshard {
namespace {

using testing::FakeHub;
using testing::RunRanks;

constexpr int kSteps = 5;
constexpr uint64_t kSeed = 7;
// Of the parameters, by turns.
const std::vector<std::vector<int64_t>> kShapes = {{32, 17}, {33}, {}, {0, 4}, {2100}, {17, 3, 3}};
constexpr size_t kParametersOfAGroup = 5;

// Of the parameters, by turns.
constexpr at::ScalarType kTypes[] = {at::kBFloat16, at::kFloat, at::kDouble, at::kHalf};

using Values = std::vector<std::vector<double>>;  // by parameter

// Values whose sums depend on the order in which they are added.
at::Tensor OrderSensitive(const std::vector<int64_t>& shape, uint64_t seed,
                          at::ScalarType type = at::kFloat) {
  std::mt19937_64 random(seed);
  at::Tensor tensor = at::zeros(shape, at::TensorOptions().dtype(at::kFloat));
  for (int64_t i = 0; i < tensor.numel(); ++i) {
    const double mantissa = static_cast<double>(random() % 20001) / 10000 - 1;
    tensor.mutable_data_ptr<float>()[i] =
        static_cast<float>(std::ldexp(mantissa, static_cast<int>(random() % 24) - 12));
  }
  return tensor.to(type);
}

const std::vector<int64_t>& ShapeOf(size_t parameter) {
  return kShapes[parameter % kShapes.size()];
}

// Each has its turn at each of the parameters, with one number of ranks or another.
at::ScalarType TypeOf(size_t parameter, int world_size) {
  return kTypes[(parameter + world_size) % std::size(kTypes)];
}

uint64_t SeedOf(uint64_t step, uint64_t rank, uint64_t parameter) {
  return kSeed + 1000003 * step + 1009 * rank + 31 * parameter;
}

struct Way {
  PartitionPolicy policy = PartitionPolicy::kReplicated;
  bool views = false;
  FakeHub::Mode mode = FakeHub::Mode::kImmediate;
};

// How the state is kept.
struct Kept {
  std::string name;
  bool master_weights = false;
  std::string state_dtype = "float32";
  std::string publish_dtype = "float32";
  bool main_gradients = false;
};

RuleOptions RuleNamed(const std::string& name, double lr) {
  RuleOptions rule = RuleOptions(name).Set("lr", lr);
  if (name == "sgd") rule.Set("momentum", 0.9);
  if (name == "adam" || name == "adamw") rule.Set("weight_decay", 0.01).Set("amsgrad", true);
  return rule;
}

// Every rule that can be cut and takes dense gradients.
std::vector<std::string> ElementWiseRules() {
  std::vector<std::string> names;
  for (const UpdateRule* rule : RuleRegistry::All()) {
    const RuleSpec& spec = rule->spec();
    if (!spec.element_wise || spec.sparse_gradients == SparseGradients::kOnly) continue;
    names.push_back(spec.name);
  }
  return names;
}

// Steps on `world_size` ranks, a group for each rule; accumulates two backwards' gradients a step,
// leaves one parameter of each group out in some of the steps, freezes another in others. Returns
// every rank's values.
std::vector<Values> TrainOn(const Kept& kept, int world_size, const Way& way, double lr = 0.003) {
  const std::vector<std::string> rules = ElementWiseRules();
  std::vector<Values> result(world_size);
  const std::vector<absl::Status> statuses = RunRanks(
      world_size,
      [&](ShardedOptimizerOptions options) {
        options.policy = way.policy;
        options.master_weights = kept.master_weights;
        options.state_dtype = kept.state_dtype;
        options.publish_dtype = kept.publish_dtype;
        options.main_gradients = kept.main_gradients;
        options.parameters_as_bucket_view = way.views;
        options.buckets.max_bytes = 4096;
        options.buckets.pack_below_bytes = 512;
        std::vector<at::Tensor> parameters;
        for (size_t i = 0; i < rules.size() * kParametersOfAGroup; ++i) {
          parameters.push_back(
              OrderSensitive(ShapeOf(i), kSeed + i, TypeOf(i, world_size)).set_requires_grad(true));
        }
        std::vector<torch::optim::OptimizerParamGroup> groups;
        for (size_t g = 0; g < rules.size(); ++g) {
          const auto first = parameters.begin() + g * kParametersOfAGroup;
          groups.emplace_back(std::vector<at::Tensor>(first, first + kParametersOfAGroup));
          // The first has the optimizer's defaults.
          if (g == 0) continue;
          groups[g].set_options(std::make_unique<RuleOptions>(RuleNamed(rules[g], lr)));
        }
        ShardedOptimizer optimizer(groups, RuleNamed(rules[0], lr), options);
        for (int step = 1; step <= kSteps; ++step) {
          optimizer.zero_grad();
          for (size_t i = 1; i < parameters.size(); i += kParametersOfAGroup) {
            parameters[i].set_requires_grad(step != 3);
          }
          for (int backward = 0; backward < 2; ++backward) {
            for (size_t i = 0; i < parameters.size(); ++i) {
              const bool left_out = step == 2 && i % kParametersOfAGroup == 0;
              if (left_out || !parameters[i].requires_grad()) continue;
              const uint64_t seed = SeedOf(2 * step + backward, options.rank, i);
              const at::ScalarType type = parameters[i].scalar_type();
              parameters[i].mul(OrderSensitive(ShapeOf(i), seed, type)).sum().backward();
            }
          }
          optimizer.step();
        }
        for (const at::Tensor& parameter : parameters) {
          const at::Tensor values = parameter.detach().to(at::kDouble).contiguous();
          const double* first = values.const_data_ptr<double>();
          result[options.rank].emplace_back(first, first + values.numel());
        }
      },
      way.mode);
  for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
  return result;
}

// The first difference in bits, for people; empty where there is none.
std::string Difference(const Values& expected, const Values& actual) {
  if (expected.size() != actual.size()) return "another number of parameters";
  for (size_t i = 0; i < expected.size(); ++i) {
    for (size_t j = 0; j < expected[i].size(); ++j) {
      uint64_t bits[2];
      std::memcpy(&bits[0], &expected[i][j], sizeof bits[0]);
      std::memcpy(&bits[1], &actual[i][j], sizeof bits[1]);
      if (bits[0] == bits[1]) continue;
      return absl::StrFormat(
          "parameter %d, index %d: expected %016x (%.17g), got %016x (%.17g); seed %d", i, j,
          bits[0], expected[i][j], bits[1], actual[i][j], kSeed);
    }
  }
  return "";
}

class BitsTest : public ::testing::TestWithParam<std::tuple<Kept, int>> {
 protected:
  const Kept& kept() const { return std::get<0>(GetParam()); }
  int world_size() const { return std::get<1>(GetParam()); }
};

TEST_P(BitsTest, Step_ShardedInAnyWay_HasTheBitsOfTheUnshardedRun) {
  const std::vector<Values> unsharded = TrainOn(kept(), world_size(), {});
  for (int rank = 1; rank < world_size(); ++rank) {
    ASSERT_EQ(Difference(unsharded[0], unsharded[rank]), "") << "replica of rank " << rank;
  }
  const Values faster = TrainOn(kept(), world_size(), {}, 0.5)[0];
  for (size_t g = 0; g * kParametersOfAGroup < faster.size(); ++g) {
    // Neither empty nor frozen nor left out.
    const size_t stepped = g * kParametersOfAGroup + 4;
    if (ShapeOf(stepped) == kShapes[3]) continue;
    ASSERT_NE(faster[stepped], unsharded[0][stepped]) << ElementWiseRules()[g] << " did nothing";
  }
  for (const PartitionPolicy policy : {PartitionPolicy::kGreedy, PartitionPolicy::kGreedyInOrder,
                                       PartitionPolicy::kBalanced, PartitionPolicy::kReplicated}) {
    for (const bool views : {false, true}) {
      for (const FakeHub::Mode mode : {FakeHub::Mode::kImmediate, FakeHub::Mode::kDelayed}) {
        const std::vector<Values> sharded = TrainOn(kept(), world_size(), {policy, views, mode});
        for (int rank = 0; rank < world_size(); ++rank) {
          EXPECT_EQ(Difference(unsharded[0], sharded[rank]), "")
              << NameOf(policy) << (views ? ", views" : ", in place") << ", rank " << rank;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    StateAndRanks, BitsTest,
    ::testing::Combine(::testing::Values(Kept{"InFloat32"}, Kept{"WithMasters", true},
                                         Kept{"InBFloat16", false, "bfloat16"}),
                       ::testing::Values(1, 2, 3, 4)),
    [](const auto& test) {
      return absl::StrCat(std::get<0>(test.param).name, "On", std::get<1>(test.param), "Ranks");
    });

INSTANTIATE_TEST_SUITE_P(OtherTypes, BitsTest,
                         ::testing::Combine(::testing::Values(Kept{"RoundedAndWithMainGradients",
                                                                   true, "float32", "bfloat16",
                                                                   true}),
                                            ::testing::Values(3)),
                         [](const auto& test) { return std::get<0>(test.param).name; });

// Matrices are stepped by one rule, and the rest by another.
void ExpectCloseToTorchs(const ShardedOptimizerOptions& options) {
  const std::vector<std::vector<int64_t>> shapes = {{64, 33}, {17, 9}, {33}, {}};
  constexpr size_t kMatrices = 2;
  const auto sgd = torch::optim::SGDOptions(0.05).momentum(0.9);
  const auto adam = torch::optim::AdamOptions(0.01).weight_decay(0.1);
  std::vector<at::Tensor> ours;
  std::vector<at::Tensor> theirs;
  for (size_t i = 0; i < shapes.size(); ++i) {
    for (std::vector<at::Tensor>* side : {&ours, &theirs}) {
      side->push_back(OrderSensitive(shapes[i], kSeed + i).set_requires_grad(true));
    }
  }
  using Tensors = std::vector<at::Tensor>;
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(Tensors(ours.begin(), ours.begin() + kMatrices),
                      std::make_unique<torch::optim::SGDOptions>(sgd));
  groups.emplace_back(Tensors(ours.begin() + kMatrices, ours.end()));
  ShardedOptimizer optimizer(groups, adam, options);
  torch::optim::SGD torch_sgd(Tensors(theirs.begin(), theirs.begin() + kMatrices), sgd);
  torch::optim::Adam torch_adam(Tensors(theirs.begin() + kMatrices, theirs.end()), adam);
  for (int step = 0; step < 100; ++step) {
    for (size_t i = 0; i < shapes.size(); ++i) {
      for (const at::Tensor& each : {ours[i], theirs[i]}) {
        each.mutable_grad() = OrderSensitive(shapes[i], SeedOf(step, 0, i));
      }
    }
    if (step == 50) {
      for (auto* group : {&optimizer.param_groups()[0], &torch_sgd.param_groups()[0]}) {
        group->options().set_lr(0.01);
      }
    }
    optimizer.step();
    torch_sgd.step();
    torch_adam.step();
  }
  for (size_t i = 0; i < shapes.size(); ++i) {
    double largest = 0;
    double apart = 0;
    for (int64_t k = 0; k < ours[i].numel(); ++k) {
      const double a = ours[i].const_data_ptr<float>()[k];
      const double b = theirs[i].const_data_ptr<float>()[k];
      largest = std::max(largest, std::abs(b));
      apart = std::max(apart, std::abs(a - b));
    }
    EXPECT_LE(apart / largest, 1e-6) << "parameter " << i;
  }
}

// One rank's gradients are summed with nobody's: the values are torch's own, but for rounding.
TEST(OracleTest, Step_TwoRulesOnOneRank_IsCloseToTorchs) {
  const std::vector<absl::Status> statuses = RunRanks(1, ExpectCloseToTorchs);
  EXPECT_TRUE(statuses[0].ok()) << statuses[0];
}

TEST(OracleTest, Step_TwoRulesAttachedToAServer_IsCloseToTorchs) {
  testing::NodeRig rig(1);
  ExpectCloseToTorchs(testing::AttachedTo(rig, 0));
}

}  // namespace
}  // namespace optshard
