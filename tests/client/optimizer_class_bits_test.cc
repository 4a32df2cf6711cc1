// That an optimizer class, sharded, has the bits of the same class over averaged gradients.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/adam.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "client/sharded_optimizer.h"
#include "common/dataplane/gloo/gloo_loader.h"
#include "tests/client/tensors.h"
#include "tests/testing/client_ranks.h"

namespace optshard {
namespace {

using testing::BytesOf;
using ::testing::Each;
using testing::RunRanks;
using testing::RunRanksOfOneHost;
using testing::RunRanksOfSeveralHosts;
using testing::Sgd;
using torch::optim::Adam;
using torch::optim::AdamOptions;
using torch::optim::OptimizerParamGroup;

// One without elements, one in several buckets, types whose average is computed in another, of one
// of them more than is averaged at a time.
const struct {
  std::vector<int64_t> shape;
  at::ScalarType type;
} kParameters[] = {{{70, 33}, at::kFloat}, {{2100}, at::kBFloat16}, {{}, at::kDouble},
                   {{0, 4}, at::kFloat},   {{5, 7}, at::kHalf},     {{129}, at::kFloat}};
constexpr int kCount = 6;
constexpr int kSteps = 4;
constexpr int kFirstOfTheClass = 1;  // the parameter before is stepped by a rule

at::Tensor Values(int parameter, int step, int rank) {
  const auto random = at::make_generator<at::CPUGeneratorImpl>(
      static_cast<uint64_t>(1 + parameter + 100 * step + 10000 * rank));
  return at::randn(kParameters[parameter].shape, random, at::TensorOptions(at::kFloat))
      .to(kParameters[parameter].type);
}

bool HasGradient(int parameter, int step, int rank) {
  return (parameter != 1 || step != 1) && (parameter != 4 || step != 2 || rank == 0);
}

AdamOptions AdamsOptions() { return AdamOptions(0.01).weight_decay(0.1).amsgrad(true); }

// Bytes of all parameters that the class steps.
std::string TrainUnsharded(int world_size) {
  std::vector<at::Tensor> parameters;
  for (int p = kFirstOfTheClass; p < kCount; ++p) {
    parameters.push_back(Values(p, 100, 0).set_requires_grad(true));
  }
  Adam adam(parameters, AdamsOptions());
  for (int step = 0; step < kSteps; ++step) {
    for (int p = kFirstOfTheClass; p < kCount; ++p) {
      const at::ScalarType type = kParameters[p].type;
      at::Tensor sum = at::zeros(kParameters[p].shape, type == at::kDouble ? type : at::kFloat);
      bool any = false;
      for (int rank = 0; rank < world_size; ++rank) {
        if (!HasGradient(p, step, rank)) continue;
        sum += Values(p, step, rank).to(sum.scalar_type());
        any = true;
      }
      at::Tensor& gradient = parameters[p - kFirstOfTheClass].mutable_grad();
      gradient = any ? (sum / world_size).to(type) : at::Tensor();
    }
    adam.step();
  }
  std::string bytes;
  for (const at::Tensor& parameter : parameters) bytes += BytesOf(parameter);
  return bytes;
}

struct Trained {
  std::string bytes;  // of what the class steps
  bool rule_stepped = false;
};

Trained TrainSharded(const ShardedOptimizerOptions& options) {
  std::vector<at::Tensor> parameters;
  for (int p = 0; p < kCount; ++p) {
    parameters.push_back(Values(p, 100, options.rank).set_requires_grad(true));
  }
  std::vector<OptimizerParamGroup> groups;
  groups.emplace_back(std::vector<at::Tensor>{parameters[0]});
  groups.emplace_back(
      std::vector<at::Tensor>(parameters.begin() + kFirstOfTheClass, parameters.end()),
      std::make_unique<RuleOptions>(RuleOptions::OfClass<Adam>(AdamsOptions())));
  ShardedOptimizer optimizer(groups, Sgd(0.5), options);
  const std::string before = BytesOf(parameters[0]);
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    for (int p = 0; p < kCount; ++p) {
      if (!HasGradient(p, step, options.rank)) continue;
      parameters[p].mul(Values(p, step, options.rank)).sum().backward();
    }
    optimizer.step();
  }
  Trained trained;
  for (int p = kFirstOfTheClass; p < kCount; ++p) trained.bytes += BytesOf(parameters[p]);
  trained.rule_stepped = BytesOf(parameters[0]) != before;
  return trained;
}

class ClassBitsTest : public ::testing::TestWithParam<int> {};

TEST_P(ClassBitsTest, Step_ShardedInAnyWay_HasTheBitsOfTheClassOnAveragedGradients) {
  const int world_size = GetParam();
  const std::string expected = TrainUnsharded(world_size);
  for (const PartitionPolicy policy : {PartitionPolicy::kGreedy, PartitionPolicy::kReplicated}) {
    for (const char* way : {"in place", "by messages", "in one pass", "on several hosts"}) {
      if (way == absl::string_view("on several hosts") && !GlooIsIsolated()) continue;
      for (const int64_t bucket_bytes : {256, 8192}) {
        std::vector<Trained> trained(world_size);
        const auto train = [&](ShardedOptimizerOptions options) {
          options.policy = policy;
          options.parameters_as_bucket_view = way != absl::string_view("in place");
          options.buckets.max_bytes = bucket_bytes;
          options.buckets.pack_below_bytes = 128;
          trained[options.rank] = TrainSharded(options);
        };
        std::vector<absl::Status> thrown;
        if (way == absl::string_view("in one pass")) {
          const testing::HostRun run = RunRanksOfOneHost(world_size, train);
          thrown = run.thrown;
          ASSERT_EQ(run.one_pass_ranks, world_size == 1 ? 0 : world_size);
        } else if (way == absl::string_view("on several hosts")) {
          // Two ranks on the first: the order of summation is that of one host.
          const testing::NodesRun run =
              RunRanksOfSeveralHosts(world_size, [&](ShardedOptimizerOptions options) {
                options.node = absl::StrCat("host", options.rank / 2);
                train(options);
              });
          thrown = run.thrown;
          ASSERT_EQ(run.ranks_on_nodes, world_size < 3 ? 0 : world_size);
        } else {
          thrown = RunRanks(world_size, train);
        }
        ASSERT_THAT(thrown, Each(absl::OkStatus())) << way;
        for (int rank = 0; rank < world_size; ++rank) {
          EXPECT_TRUE(trained[rank].bytes == expected)
              << way << ", " << NameOf(policy) << ", rank " << rank;
          EXPECT_TRUE(trained[rank].rule_stepped);
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, ClassBitsTest, ::testing::Values(1, 2, 3));

}  // namespace
}  // namespace optshard
