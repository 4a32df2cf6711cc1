// That an optimizer class, LibTorch's or somebody's own, has sharded the bits of the same class
// over averaged gradients.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/adam.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/sharded_optimizer.h"
#include "common/dataplane/gloo/gloo_loader.h"
#include "common/dataplane/host_plane.h"
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

// Somebody's own: it has a momentum, options of its own, and steps by parameters' norms, for which
// it needs them whole.
class NormedMomentum : public torch::optim::Optimizer {
 public:
  struct Options : torch::optim::OptimizerCloneableOptions<Options> {
    double speed = 0.25;
  };

  NormedMomentum(std::vector<at::Tensor> parameters, const Options& options)
      : Optimizer({torch::optim::OptimizerParamGroup(std::move(parameters))},
                  std::make_unique<Options>(options)) {}

  at::Tensor step(LossClosure = nullptr) override {
    const at::NoGradGuard no_grad;
    auto& group = param_groups()[0];
    const double speed = static_cast<const Options&>(group.options()).speed;
    for (at::Tensor& parameter : group.params()) {
      if (!parameter.grad().defined()) continue;
      at::Tensor& momentum = momenta_[parameter.unsafeGetTensorImpl()];
      if (!momentum.defined()) momentum = at::zeros_like(parameter);
      momentum.mul_(0.5).add_(parameter.grad());
      parameter.sub_(momentum.mul(speed).div(parameter.norm().add(1)));
    }
    return {};
  }

 private:
  std::map<const void*, at::Tensor> momenta_;
};

// One without elements, one in several buckets, types whose average is computed in another, of one
// of them more than is averaged at a time.
const struct {
  std::vector<int64_t> shape;
  at::ScalarType type;
} kParameters[] = {{{70, 33}, at::kFloat}, {{2100}, at::kBFloat16}, {{}, at::kDouble},
                   {{0, 4}, at::kFloat},   {{5, 7}, at::kHalf},     {{129}, at::kFloat}};
constexpr int kCount = std::size(kParameters);
constexpr int kSteps = 4;

// The groups of a job, each with all of these parameters, in their order.
enum Stepper { kRule, kAdam, kOwnClass, kSteppers };

at::Tensor Values(Stepper stepper, int parameter, int step, int rank) {
  const auto random = at::make_generator<at::CPUGeneratorImpl>(
      static_cast<uint64_t>(1 + parameter + 10 * stepper + 100 * step + 10000 * rank));
  return at::randn(kParameters[parameter].shape, random, at::TensorOptions(at::kFloat))
      .to(kParameters[parameter].type);
}

bool HasGradient(int parameter, int step, int rank) {
  return (parameter != 1 || step != 1) && (parameter != 4 || step != 2 || rank == 0);
}

AdamOptions AdamsOptions() { return AdamOptions(0.01).weight_decay(0.1).amsgrad(true); }

std::vector<at::Tensor> FirstValues(Stepper stepper, int rank) {
  std::vector<at::Tensor> parameters;
  for (int p = 0; p < kCount; ++p) {
    parameters.push_back(Values(stepper, p, 100, rank).set_requires_grad(true));
  }
  return parameters;
}

std::string BytesOfAll(const std::vector<at::Tensor>& parameters) {
  std::string bytes;
  for (const at::Tensor& parameter : parameters) bytes += BytesOf(parameter);
  return bytes;
}

template <typename Class, typename Options>
std::string TrainUnsharded(Stepper stepper, const Options& options, int world_size) {
  const std::vector<at::Tensor> parameters = FirstValues(stepper, 0);
  Class optimizer(parameters, options);
  for (int step = 0; step < kSteps; ++step) {
    for (int p = 0; p < kCount; ++p) {
      const at::ScalarType type = kParameters[p].type;
      at::Tensor sum = at::zeros(kParameters[p].shape, type == at::kDouble ? type : at::kFloat);
      bool any = false;
      for (int rank = 0; rank < world_size; ++rank) {
        if (!HasGradient(p, step, rank)) continue;
        sum += Values(stepper, p, step, rank).to(sum.scalar_type());
        any = true;
      }
      parameters[p].mutable_grad() = any ? (sum / world_size).to(type) : at::Tensor();
    }
    optimizer.step();
  }
  return BytesOfAll(parameters);
}

// Bytes of all parameters, by stepper.
std::vector<std::string> TrainSharded(const ShardedOptimizerOptions& options) {
  const RuleOptions steppers[] = {Sgd(0.5), RuleOptions::OfClass<Adam>(AdamsOptions()),
                                  RuleOptions::OfClass<NormedMomentum>(NormedMomentum::Options())};
  std::vector<std::vector<at::Tensor>> parameters;
  std::vector<OptimizerParamGroup> groups;
  for (int s = 0; s < kSteppers; ++s) {
    parameters.push_back(FirstValues(static_cast<Stepper>(s), options.rank));
    groups.emplace_back(parameters[s], std::make_unique<RuleOptions>(steppers[s]));
  }
  ShardedOptimizer optimizer(groups, steppers[kRule], options);
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    for (int s = 0; s < kSteppers; ++s) {
      for (int p = 0; p < kCount; ++p) {
        if (!HasGradient(p, step, options.rank)) continue;
        const at::Tensor gradient = Values(static_cast<Stepper>(s), p, step, options.rank);
        parameters[s][p].mul(gradient).sum().backward();
      }
    }
    optimizer.step();
  }
  std::vector<std::string> bytes;
  for (int s = 0; s < kSteppers; ++s) bytes.push_back(BytesOfAll(parameters[s]));
  return bytes;
}

enum class Way { kInPlace, kByMessages, kInOnePass, kOverGloo, kOnSeveralHosts };
const char* const kWayNames[] = {"in place", "by messages", "in one pass", "over Gloo",
                                 "on several hosts"};

using Train = std::function<void(ShardedOptimizerOptions)>;

std::vector<absl::Status> RunInWay(Way way, int world_size, const Train& train) {
  if (way == Way::kInOnePass) {
    testing::HostRun run = RunRanksOfOneHost(world_size, train);
    EXPECT_EQ(run.one_pass_ranks, world_size == 1 ? 0 : world_size);
    return run.thrown;
  }
  if (way == Way::kOverGloo) {
    testing::HostRun run = RunRanksOfOneHost(world_size, train, HostPlaneKind::kGloo);
    EXPECT_EQ(run.one_pass_ranks, 0);
    return run.thrown;
  }
  if (way == Way::kOnSeveralHosts) {
    // Two ranks on the first: the order of summation is that of one host.
    testing::NodesRun run =
        RunRanksOfSeveralHosts(world_size, [&](ShardedOptimizerOptions options) {
          options.node = absl::StrCat("host", std::max(0, options.rank - 1));
          train(options);
        });
    EXPECT_EQ(run.ranks_on_nodes, world_size < 3 ? 0 : world_size);
    return run.thrown;
  }
  return RunRanks(world_size, train);
}

class ClassBitsTest : public ::testing::TestWithParam<int> {};

TEST_P(ClassBitsTest, Step_ShardedInAnyWay_HasTheBitsOfTheClassOnAveragedGradients) {
  const int world_size = GetParam();
  const std::string adams = TrainUnsharded<Adam>(kAdam, AdamsOptions(), world_size);
  const std::string own =
      TrainUnsharded<NormedMomentum>(kOwnClass, NormedMomentum::Options(), world_size);
  for (const Way way :
       {Way::kInPlace, Way::kByMessages, Way::kInOnePass, Way::kOverGloo, Way::kOnSeveralHosts}) {
    if (way >= Way::kOverGloo && !GlooIsIsolated()) continue;
    for (const PartitionPolicy policy : {PartitionPolicy::kGreedy, PartitionPolicy::kReplicated}) {
      for (const int64_t bucket_bytes : {256, 8192}) {
        SCOPED_TRACE(absl::StrCat(kWayNames[static_cast<int>(way)], ", ", NameOf(policy)));
        std::vector<std::vector<std::string>> trained(world_size);
        ASSERT_THAT(RunInWay(way, world_size,
                             [&](ShardedOptimizerOptions options) {
                               options.policy = policy;
                               options.parameters_as_bucket_view = way != Way::kInPlace;
                               options.buckets.max_bytes = bucket_bytes;
                               options.buckets.pack_below_bytes = 128;
                               trained[options.rank] = TrainSharded(options);
                             }),
                    Each(absl::OkStatus()));
        for (int rank = 0; rank < world_size; ++rank) {
          EXPECT_TRUE(trained[rank][kAdam] == adams) << "rank " << rank;
          EXPECT_TRUE(trained[rank][kOwnClass] == own) << "rank " << rank;
          EXPECT_NE(trained[rank][kRule], BytesOfAll(FirstValues(kRule, 0)));
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, ClassBitsTest, ::testing::Values(1, 2, 3, 5));

}  // namespace
}  // namespace optshard
