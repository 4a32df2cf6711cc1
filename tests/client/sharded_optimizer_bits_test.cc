// That a sharded run has the bits of the unsharded one, whatever the policy, the memory and the
// number of ranks.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/optim/adam.h>

#include <cmath>
#include <cstring>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/sharded_optimizer.h"
#include "tests/testing/client_ranks.h"

namespace optshard {
namespace {

using testing::FakeHub;
using testing::RunRanks;

constexpr int kSteps = 5;
constexpr uint64_t kSeed = 7;
const std::vector<std::vector<int64_t>> kShapes = {{64, 33}, {33}, {}, {0, 4}, {5000}, {17, 3, 3}};

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

// Steps on `world_size` ranks; accumulates two backwards' gradients a step, leaves one parameter
// out in some of the steps, freezes another in others. Returns every rank's values.
std::vector<Values> TrainOn(const RuleOptions& rule, int world_size, const Way& way) {
  std::vector<Values> result(world_size);
  const std::vector<absl::Status> statuses = RunRanks(
      world_size,
      [&](ShardedOptimizerOptions options) {
        options.policy = way.policy;
        options.master_weights = rule.rule() == "adamw";
        options.state_dtype = rule.rule() == "sgd" ? "bfloat16" : "float32";
        options.parameters_as_bucket_view = way.views;
        options.buckets.max_bytes = 4096;
        options.buckets.pack_below_bytes = 512;
        std::vector<at::Tensor> parameters;
        for (size_t i = 0; i < kShapes.size(); ++i) {
          parameters.push_back(
              OrderSensitive(kShapes[i], kSeed + i, TypeOf(i, world_size)).set_requires_grad(true));
        }
        std::vector<torch::optim::OptimizerParamGroup> groups;
        groups.emplace_back(std::vector<at::Tensor>(parameters.begin(), parameters.begin() + 3));
        groups.emplace_back(
            std::vector<at::Tensor>(parameters.begin() + 3, parameters.end()),
            std::make_unique<RuleOptions>(RuleOptions(rule.rule()).Set("lr", 0.003)));
        ShardedOptimizer optimizer(groups, rule, options);
        for (int step = 1; step <= kSteps; ++step) {
          optimizer.zero_grad();
          parameters[1].set_requires_grad(step != 3);
          for (int backward = 0; backward < 2; ++backward) {
            for (size_t i = 0; i < parameters.size(); ++i) {
              if ((step == 2 && i == 0) || !parameters[i].requires_grad()) continue;
              const uint64_t seed = SeedOf(2 * step + backward, options.rank, i);
              const at::ScalarType type = parameters[i].scalar_type();
              parameters[i].mul(OrderSensitive(kShapes[i], seed, type)).sum().backward();
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

RuleOptions RuleNamed(const std::string& name) {
  if (name == "sgd") return RuleOptions("sgd").Set("lr", 0.01).Set("momentum", 0.9);
  return RuleOptions(name).Set("weight_decay", 0.01).Set("amsgrad", true);
}

class BitsTest : public ::testing::TestWithParam<std::tuple<std::string, int>> {
 protected:
  RuleOptions rule() const { return RuleNamed(std::get<0>(GetParam())); }
  int world_size() const { return std::get<1>(GetParam()); }
};

TEST_P(BitsTest, Step_ShardedInAnyWay_HasTheBitsOfTheUnshardedRun) {
  const std::vector<Values> unsharded = TrainOn(rule(), world_size(), {});
  for (int rank = 1; rank < world_size(); ++rank) {
    ASSERT_EQ(Difference(unsharded[0], unsharded[rank]), "") << "replica of rank " << rank;
  }
  ASSERT_NE(Difference(unsharded[0], TrainOn(rule().Set("lr", 0.5), world_size(), {})[0]), "")
      << "nothing was stepped";
  for (const PartitionPolicy policy : {PartitionPolicy::kGreedy, PartitionPolicy::kGreedyInOrder,
                                       PartitionPolicy::kBalanced, PartitionPolicy::kReplicated}) {
    for (const bool views : {false, true}) {
      for (const FakeHub::Mode mode : {FakeHub::Mode::kImmediate, FakeHub::Mode::kDelayed}) {
        const std::vector<Values> sharded = TrainOn(rule(), world_size(), {policy, views, mode});
        for (int rank = 0; rank < world_size(); ++rank) {
          EXPECT_EQ(Difference(unsharded[0], sharded[rank]), "")
              << NameOf(policy) << (views ? ", views" : ", in place") << ", rank " << rank;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(RulesAndRanks, BitsTest,
                         ::testing::Combine(::testing::Values("sgd", "adam", "adamw"),
                                            ::testing::Values(1, 2, 3, 4)),
                         [](const auto& test) {
                           return absl::StrCat(std::get<0>(test.param), "On",
                                               std::get<1>(test.param), "Ranks");
                         });

// One rank's gradients are summed with nobody's: the values are torch's own, but for rounding.
TEST(OracleTest, Step_AdamOnOneRank_IsCloseToTorchs) {
  const std::vector<int64_t> shape = {64, 33};
  const at::Tensor ours = OrderSensitive(shape, kSeed).set_requires_grad(true);
  const at::Tensor theirs = OrderSensitive(shape, kSeed).set_requires_grad(true);
  torch::optim::Adam torch_optimizer({theirs}, torch::optim::AdamOptions(0.01).weight_decay(0.1));
  const std::vector<absl::Status> statuses =
      RunRanks(1, [&](const ShardedOptimizerOptions& options) {
        ShardedOptimizer optimizer({ours}, torch::optim::AdamOptions(0.01).weight_decay(0.1),
                                   options);
        for (int step = 0; step < 100; ++step) {
          for (const at::Tensor& each : {ours, theirs}) {
            each.mutable_grad() = OrderSensitive(shape, SeedOf(step, 0, 0));
          }
          optimizer.step();
          torch_optimizer.step();
        }
      });
  ASSERT_TRUE(statuses[0].ok()) << statuses[0];
  double largest = 0;
  double apart = 0;
  for (int64_t i = 0; i < ours.numel(); ++i) {
    const double a = ours.const_data_ptr<float>()[i];
    const double b = theirs.const_data_ptr<float>()[i];
    largest = std::max(largest, std::abs(b));
    apart = std::max(apart, std::abs(a - b));
  }
  EXPECT_LE(apart / largest, 1e-6);
}

}  // namespace
}  // namespace optshard
