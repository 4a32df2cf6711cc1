// torch::save and torch::load of the optimizer, and torch::optim's own archives.
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>
#include <torch/serialize.h>

#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "client/sharded_optimizer.h"
#include "client/state_dict.h"
#include "tests/client/tensors.h"
#include "tests/testing/client_ranks.h"

namespace optshard {
namespace {

using testing::ExpectAllOk;
using ::testing::HasSubstr;
using testing::RunRanks;
using Parameters = std::vector<at::Tensor>;

Parameters NewParameters() {
  return {testing::Parameter({3, 40}, 1), testing::Parameter({7}, 1), testing::Parameter({}, 1)};
}

void GiveGradients(const Parameters& parameters, int step) {
  for (size_t i = 0; i < parameters.size(); ++i) {
    parameters[i].mutable_grad() = at::arange(parameters[i].numel())
                                       .add(static_cast<int64_t>(3 * i) + int64_t{7} * step)
                                       .remainder(11)
                                       .sub(5)
                                       .div(8)
                                       .reshape(parameters[i].sizes());
  }
}

// Steps `first` to `last`.
void Train(torch::optim::Optimizer& optimizer, const Parameters& parameters, int first, int last) {
  for (int step = first; step <= last; ++step) {
    GiveGradients(parameters, step);
    optimizer.step();
  }
}

std::string Saved(const torch::optim::Optimizer& optimizer) {
  std::ostringstream out;
  torch::save(optimizer, out);
  return out.str();
}

void Load(torch::optim::Optimizer& optimizer, const std::string& archive) {
  std::istringstream in(archive);
  torch::load(optimizer, in);
}

void CopyValues(const Parameters& from, const Parameters& to) {
  for (size_t i = 0; i < from.size(); ++i) to[i].detach().copy_(from[i].detach());
}

void ExpectClose(const Parameters& actual, const Parameters& expected) {
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_TRUE(at::allclose(actual[i], expected[i], 1e-5, 1e-6)) << "parameter " << i;
  }
}

struct OfTorch {
  std::string name;
  RuleOptions rule;
  std::function<std::unique_ptr<torch::optim::Optimizer>(Parameters)> make;
};

template <typename Optimizer, typename Options>
OfTorch Case(const char* name, const Options& options) {
  return {name, options,
          [options](Parameters parameters) -> std::unique_ptr<torch::optim::Optimizer> {
            return std::make_unique<Optimizer>(std::move(parameters), options);
          }};
}

std::vector<OfTorch> TorchsOptimizers() {
  using namespace torch::optim;  // NOLINT(google-build-using-namespace): one line an optimizer
  return {
      Case<Adam>("Adam", AdamOptions(0.01).amsgrad(true)),
      Case<AdamW>("AdamW", AdamWOptions(0.01).betas({0.8, 0.9})),
      Case<Adagrad>("Adagrad", AdagradOptions(0.01).initial_accumulator_value(0.5)),
      Case<RMSprop>("RMSprop", RMSpropOptions(0.01).momentum(0.5).centered(true)),
      Case<SGD>("SGD", SGDOptions(0.1).momentum(0.5).nesterov(true)),
      Case<SGD>("SGD without momentum", SGDOptions(0.1)),
  };
}

TEST(StateArchiveTest, TorchsOwnArchive_IsLoadedAndGoesOnAsTorch) {
  for (const OfTorch& peer : TorchsOptimizers()) {
    SCOPED_TRACE(peer.name);
    const Parameters theirs = NewParameters();
    const auto optimizer = peer.make(theirs);
    Train(*optimizer, theirs, 1, 2);
    optimizer->param_groups()[0].options().set_lr(0.02);
    const std::string archive = Saved(*optimizer);
    Parameters half = NewParameters();
    CopyValues(theirs, half);
    Train(*optimizer, theirs, 3, 4);
    ExpectAllOk(RunRanks(2, [&](const ShardedOptimizerOptions& options) {
      const Parameters ours = NewParameters();
      CopyValues(half, ours);
      ShardedOptimizer sharded(ours, peer.rule, options);
      Load(sharded, archive);
      EXPECT_EQ(sharded.param_groups()[0].options().get_lr(), 0.02);
      Train(sharded, ours, 3, 4);
      ExpectClose(ours, theirs);
      sharded.Close();
    }));
  }
}

TEST(StateArchiveTest, OurArchive_IsLoadedByTorchAndGoesOnAsOurs) {
  for (const OfTorch& peer : TorchsOptimizers()) {
    SCOPED_TRACE(peer.name);
    ExpectAllOk(RunRanks(2, [&](const ShardedOptimizerOptions& options) {
      const Parameters ours = NewParameters();
      ShardedOptimizer sharded(ours, peer.rule, options);
      Train(sharded, ours, 1, 2);
      sharded.param_groups()[0].options().set_lr(0.02);
      sharded.consolidate_state_dict(-1);
      const Parameters theirs = NewParameters();
      CopyValues(ours, theirs);
      const auto optimizer = peer.make(theirs);
      Load(*optimizer, Saved(sharded));
      EXPECT_EQ(optimizer->param_groups()[0].options().get_lr(), 0.02);
      Train(*optimizer, theirs, 3, 4);
      Train(sharded, ours, 3, 4);
      ExpectClose(theirs, ours);
      sharded.Close();
    }));
  }
}

// Of two rules, with what torch::optim has no words for.
TEST(StateArchiveTest, SavedAndLoaded_AnyRules_GoesOnWithTheSameBits) {
  std::vector<std::string> expected;
  std::string archive;
  const auto run = [&](int world_size, int first, int last) {
    ExpectAllOk(RunRanks(world_size, [&](ShardedOptimizerOptions options) {
      options.gradient_mode = GradientMode::kAveraged;
      const Parameters parameters = NewParameters();
      std::vector<torch::optim::OptimizerParamGroup> groups;
      groups.emplace_back(Parameters{parameters[0]},
                          std::make_unique<RuleOptions>(RuleOptions("adafactor").Set("lr", 0)));
      groups.emplace_back(Parameters{parameters[1], parameters[2]});
      ShardedOptimizer optimizer(groups, RuleOptions("nadam").Set("lr", 0), options);
      if (first > 1) Load(optimizer, archive);
      Train(optimizer, parameters, first, last);
      optimizer.consolidate_state_dict(0);
      if (options.rank == 0) {
        archive = Saved(optimizer);
        const std::vector<std::string> lines = DigestLines(optimizer.state_dict());
        if (world_size == 1) expected = lines;
        if (last == 4) {
          EXPECT_EQ(lines, expected);
        }
      }
      optimizer.Close();
    }));
  };
  run(1, 1, 4);
  run(2, 1, 2);
  run(3, 3, 4);
}

TEST(StateArchiveTest, NotConsolidated_OrNoArchiveOfAnOptimizer_IsAnError) {
  ExpectAllOk(RunRanks(1, [](const ShardedOptimizerOptions& options) {
    ShardedOptimizer optimizer(NewParameters(), testing::Sgd(1), options);
    EXPECT_THROW(Saved(optimizer), StatusError);
    std::ostringstream other;
    torch::save(at::full({3}, 1.0F), other);
    try {
      Load(optimizer, other.str());
      ADD_FAILURE() << "a tensor was loaded";
    } catch (const StatusError& error) {
      EXPECT_THAT(error.what(), HasSubstr("the archive is not that of an optimizer"));
    }
    optimizer.Close();
  }));
}

// Only rank 1's archive lacks a part: rank 0 is told, and does not wait.
TEST(StateArchiveTest, ArchiveThatLacksAPart_IsAnErrorOnAllRanks) {
  ExpectAllOk(RunRanks(2, [](const ShardedOptimizerOptions& options) {
    ShardedOptimizer optimizer(NewParameters(), testing::Sgd(1), options);
    optimizer.consolidate_state_dict(-1);
    torch::serialize::OutputArchive archive;
    archive.write("pytorch_version", c10::IValue("1.5.0"));
    std::ostringstream torn;
    archive.save_to(torn);
    const std::string whole = Saved(optimizer);
    try {
      Load(optimizer, options.rank == 1 ? torn.str() : whole);
      ADD_FAILURE() << "half an archive was loaded";
    } catch (const StatusError& error) {
      EXPECT_TRUE(absl::IsInvalidArgument(error.status())) << error.what();
      EXPECT_THAT(error.what(), HasSubstr("rank 1: the archive is not a whole one"));
    }
    Load(optimizer, whole);
    optimizer.Close();
  }));
}

}  // namespace
}  // namespace optshard
