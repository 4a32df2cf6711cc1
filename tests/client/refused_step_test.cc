// What step() says of what it cannot use, and that nothing changes by it.
#include <ATen/ops/empty.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/lbfgs.h>

#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/sharded_optimizer.h"
#include "common/gradient_mode.h"
#include "tests/client/attached_options.h"
#include "tests/client/tensors.h"
#include "tests/testing/client_ranks.h"

namespace optshard {
namespace {

using testing::BytesOf;
using testing::Gradient;
using ::testing::HasSubstr;
using testing::Parameter;
using testing::RunRanks;
using torch::optim::OptimizerParamGroup;

constexpr int kRanks = 2;
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

OptimizerParamGroup Group(const std::vector<at::Tensor>& parameters) {
  return OptimizerParamGroup(parameters);
}

struct Trainer {
  std::vector<at::Tensor> parameters;
  std::unique_ptr<ShardedOptimizer> optimizer;
  std::function<void()> call;  // in place of step()

  Rank rank() const { return optimizer->options().rank; }
  std::vector<OptimizerParamGroup>& groups() const { return optimizer->param_groups(); }
};

// Bytes by what they are of, such as "exp_avg of parameter 1".
using State = std::map<std::string, std::string>;

// Of this rank: its replica of the parameters, the slots and step counts of its share.
State StateOf(const Trainer& trainer) {
  State state;
  for (size_t i = 0; i < trainer.parameters.size(); ++i) {
    state[absl::StrCat("parameter ", i)] = BytesOf(trainer.parameters[i]);
  }
  state["the last step"] = absl::StrCat(trainer.optimizer->finished_step());
  for (size_t i = 0; i < trainer.parameters.size(); ++i) {
    for (const auto& [slot, values] : trainer.optimizer->state(trainer.parameters[i])) {
      state[absl::StrCat(slot, " of parameter ", i)] = BytesOf(values);
    }
  }
  return state;
}

// What differs, for people; empty where nothing does.
std::string Difference(const State& expected, const State& actual) {
  for (const auto& [of, bytes] : expected) {
    const auto found = actual.find(of);
    if (found == actual.end()) return of + " is gone";
    if (found->second != bytes) return of;
  }
  return expected.size() == actual.size() ? "" : "there is more than there was";
}

using Undo = std::function<void()>;

// Who notices a mistake that rank 1 alone makes.
enum class Notices {
  kItself,  // before it sends anything: the other rank waits for it in its next step
  kAll,     // all ranks call, and all are refused
};

struct BadStep {
  std::string what;
  std::function<Undo(Trainer&)> make;  // returns what makes it good again
  std::vector<std::string> said;
  Notices notices = Notices::kItself;
};

Undo SetGradient(Trainer& trainer, size_t parameter, const at::Tensor& gradient) {
  trainer.parameters[parameter].mutable_grad() = gradient;
  return [] {};  // each step is given its gradients anew
}

Undo SetValues(Trainer& trainer, size_t parameter, const at::Tensor& values) {
  const at::Tensor tensor = trainer.parameters[parameter];
  const at::Tensor before = tensor.detach();
  tensor.set_data(values);
  return [tensor, before] { tensor.set_data(before); };
}

Undo SetOptions(Trainer& trainer, size_t group,
                std::unique_ptr<torch::optim::OptimizerOptions> options) {
  const std::shared_ptr<torch::optim::OptimizerOptions> before =
      trainer.groups()[group].options().clone();
  trainer.groups()[group].set_options(std::move(options));
  return [&trainer, group, before] { trainer.groups()[group].set_options(before->clone()); };
}

// An option of group 1.
template <typename Value>
std::function<Undo(Trainer&)> Option(const std::string& name, Value value) {
  return [name, value](Trainer& trainer) {
    auto options = trainer.groups()[1].options().clone();
    static_cast<RuleOptions&>(*options).Set(name, value);
    return SetOptions(trainer, 1, std::move(options));
  };
}

Undo CallInstead(Trainer& trainer, std::function<void()> call) {
  trainer.call = std::move(call);
  return [&trainer] { trainer.call = nullptr; };
}

const std::vector<BadStep>& BadSteps() {
  static const auto* const all = new std::vector<BadStep>{
      {"a gradient of another shape",
       [](Trainer& trainer) { return SetGradient(trainer, 0, at::ones({6})); },
       {"rank 1", "\"weight\"", "[6]", "[2, 3]"}},
      {"a gradient of another type",
       [](Trainer& trainer) {
         return SetGradient(trainer, 0, Gradient({2, 3}, 1).to(at::kDouble));
       },
       {"rank 1", "\"weight\"", "Double", "Float", "convert"}},
      {"a gradient on another device",
       [](Trainer& trainer) {
         const auto meta = at::TensorOptions().device(at::kMeta);
         return SetGradient(trainer, 0, at::empty({2, 3}, meta));
       },
       {"rank 1", "\"weight\"", "meta", "cpu"}},
      {"a sparse gradient",
       [](Trainer& trainer) {
         return SetGradient(trainer, 0, at::ones({2, 3}).to_sparse());
       },
       {"rank 1", "\"weight\"", "Sparse", "to_dense()"}},
      {"values of another type",
       [](Trainer& trainer) {
         return SetValues(trainer, 0, Gradient({2, 3}, 1).to(at::kDouble));
       },
       {"rank 1", "\"weight\"", "Double", "make another optimizer"}},
      {"values of another shape",
       [](Trainer& trainer) { return SetValues(trainer, 0, at::ones({7})); },
       {"rank 1", "\"weight\"", "[7]", "[2, 3]"}},
      {"a value out of its range", Option("lr", -1.0), {"rank 1: param group 1", "\"lr\" is -1"}},
      {"a value that is no number", Option("lr", kNan), {"rank 1: param group 1", "\"lr\" is nan"}},
      {"a pair out of its range",
       Option("betas", Numbers{0.9, 1.0}),
       {"rank 1: param group 1", "[0.9, 1]", "[0, 1)"}},
      {"an option that the rule has not",
       Option("beta", 0.9),
       {"rank 1: param group 1", "no option \"beta\"", "did you mean \"betas\"?"}},
      {"an option of another type",
       Option("betas", 0.9),
       {"rank 1: param group 1", "a number", "a pair of numbers"}},
      {"an option that decides over slots",
       Option("amsgrad", false),
       {"rank 1: param group 1", "\"amsgrad\"", "max_exp_avg_sq", "Construct the optimizer with"}},
      {"options of another rule",
       [](Trainer& trainer) {
         return SetOptions(trainer, 1, std::make_unique<RuleOptions>(RuleOptions("sgd")));
       },
       {"rank 1", "param group 1", "\"sgd\"", "\"adam\""}},
      {"options of an optimizer that cannot be sharded",
       [](Trainer& trainer) {
         return SetOptions(trainer, 1, std::make_unique<torch::optim::LBFGSOptions>(1));
       },
       {"rank 1: param group 1", "LBFGS cannot be sharded"}},
      {"a parameter more",
       [](Trainer& trainer) {
         std::vector<at::Tensor>& group = trainer.groups()[0].params();
         group.insert(group.begin(), Parameter({1}, 1));
         return [&group] { group.erase(group.begin()); };
       },
       {"rank 1", "group 0", "other parameters", "Undo the change"}},
      {"a parameter less",
       [](Trainer& trainer) {
         std::vector<at::Tensor>& group = trainer.groups()[0].params();
         const at::Tensor last = group.back();
         group.pop_back();
         return [&group, last] { group.push_back(last); };
       },
       {"rank 1", "group 0", "other parameters", "Undo the change"}},
      {"another tensor in a parameter's place",
       [](Trainer& trainer) {
         at::Tensor& first = trainer.groups()[0].params()[0];
         const at::Tensor before = std::exchange(first, Parameter({2, 3}, 1));
         return [&first, before] { first = before; };
       },
       {"rank 1", "group 0", "other parameters", "Undo the change"}},
      {"a closure that throws",
       [](Trainer& trainer) {
         return CallInstead(trainer, [&trainer] {
           trainer.optimizer->step([]() -> at::Tensor { throw std::runtime_error("no batch"); });
         });
       },
       {"no batch"}},
      {"a value that the ranks have not alike",
       Option("lr", 0.5),
       {"group 1: lr is 0.25 on rank 0 but 0.5 on rank 1"},
       Notices::kAll},
  };
  return *all;
}

// More where the trainer averages the gradients itself: nothing comes before the ranks' vote then.
const std::vector<BadStep>& BadStepsOfAveragedGradients() {
  static const auto* const all = new std::vector<BadStep>{
      {"a gradient missing on one rank",
       [](Trainer& trainer) { return SetGradient(trainer, 1, at::Tensor()); },
       {"\"half\"", "rank 1"},
       Notices::kAll},
      {"another call than the other rank's",
       [](Trainer& trainer) {
         return CallInstead(trainer, [&trainer] { trainer.optimizer->refresh_parameters(); });
       },
       {"rank 1"},
       Notices::kAll},
  };
  return *all;
}

void GiveGradients(Trainer& trainer, size_t step) {
  for (size_t i = 0; i < trainer.parameters.size(); ++i) {
    const at::Tensor& parameter = trainer.parameters[i];
    const double value = 0.5 * trainer.rank() + 0.125 * step - 0.75 * i;
    parameter.mutable_grad() = at::full_like(parameter, value);
  }
}

void Call(const Trainer& trainer) {
  if (trainer.call != nullptr) return trainer.call();
  trainer.optimizer->step();
}

void ExpectRefused(Trainer& trainer, const BadStep& bad) {
  const Undo undo = trainer.rank() == 1 ? bad.make(trainer) : [] {};
  std::string said;
  try {
    Call(trainer);
  } catch (const std::exception& error) {
    said = error.what();
  }
  for (const std::string& text : bad.said) EXPECT_THAT(said, HasSubstr(text));
  undo();
}

// How the ranks reach each other and their shard owners.
struct Way {
  const char* name;
  bool takes_no_views;  // of one memory for all parameters
  std::function<std::vector<absl::Status>(const std::function<void(ShardedOptimizerOptions)>&)> run;
};

std::vector<Way> Ways() {
  return {
      {"by messages", true, [](const auto& body) { return RunRanks(kRanks, body); }},
      {"in one pass", false,
       [](const auto& body) {
         const testing::HostRun run = testing::RunRanksOfOneHost(kRanks, body);
         EXPECT_EQ(run.one_pass_ranks, kRanks);
         return run.thrown;
       }},
      {"attached", false, [](const auto& body) { return testing::RunAttached(kRanks, body); }},
  };
}

// One good step first, then one after each of the `refused` ones. Returns each rank's states after
// them.
std::vector<std::vector<State>> Train(const Way& way, GradientMode mode, bool views,
                                      size_t good_steps, const std::vector<BadStep>& refused) {
  std::vector<std::vector<State>> states(kRanks);
  const std::vector<absl::Status> statuses = way.run([&](ShardedOptimizerOptions options) {
    options.gradient_mode = mode;
    options.parameters_as_bucket_view = views;
    options.master_weights = true;
    options.parameter_names = {"weight", "half", "scalar"};
    Trainer trainer;
    trainer.parameters = {Parameter({2, 3}, 1),
                          Gradient({3, 4}, 2).to(at::kBFloat16).set_requires_grad(true),
                          Gradient({}, 3).to(at::kDouble).set_requires_grad(true)};
    std::vector<OptimizerParamGroup> groups = {
        Group({trainer.parameters[0], trainer.parameters[1]}), Group({trainer.parameters[2]})};
    groups[1].set_options(std::make_unique<RuleOptions>(RuleOptions("adam").Set("lr", 0.25)));
    trainer.optimizer = std::make_unique<ShardedOptimizer>(
        groups, RuleOptions("adam").Set("amsgrad", true).Set("weight_decay", 0.1), options);
    for (size_t step = 0; step < good_steps; ++step) {
      GiveGradients(trainer, step);
      if (step > 0 && step <= refused.size()) {
        const BadStep& bad = refused[step - 1];
        SCOPED_TRACE(bad.what);
        if (trainer.rank() == 1 || bad.notices == Notices::kAll) {
          const State before = StateOf(trainer);
          ExpectRefused(trainer, bad);
          EXPECT_EQ(Difference(before, StateOf(trainer)), "");
          GiveGradients(trainer, step);
        }
      }
      Call(trainer);
      states[trainer.rank()].push_back(StateOf(trainer));
    }
    trainer.optimizer->Close();
  });
  for (const absl::Status& status : statuses) EXPECT_EQ(status, absl::OkStatus());
  return states;
}

void ExpectNothingChanges(const Way& way, GradientMode mode, bool views) {
  std::vector<BadStep> refused = BadSteps();
  if (mode == GradientMode::kAveraged) {
    const std::vector<BadStep>& more = BadStepsOfAveragedGradients();
    refused.insert(refused.end(), more.begin(), more.end());
  }
  const size_t steps = refused.size() + 1;
  const auto undisturbed = Train(way, mode, views, steps, {});
  const auto disturbed = Train(way, mode, views, steps, refused);
  for (int rank = 0; rank < kRanks; ++rank) {
    ASSERT_EQ(undisturbed[rank].size(), steps);
    ASSERT_EQ(disturbed[rank].size(), steps);
    EXPECT_NE(Difference(undisturbed[rank][0], undisturbed[rank][1]), "") << "nothing stepped";
    for (size_t i = 0; i < refused.size(); ++i) {
      EXPECT_EQ(Difference(undisturbed[rank][i + 1], disturbed[rank][i + 1]), "")
          << "rank " << rank << " after " << refused[i].what;
    }
  }
}

TEST(RefusedStepTest, Step_WhatCannotBeUsed_ChangesNothingAndTheNextStepHasTheSameBits) {
  for (const Way& way : Ways()) {
    SCOPED_TRACE(way.name);
    for (const GradientMode mode : {GradientMode::kReduce, GradientMode::kAveraged}) {
      ExpectNothingChanges(way, mode, /*views=*/true);
      if (way.takes_no_views) ExpectNothingChanges(way, mode, /*views=*/false);
    }
  }
}

}  // namespace
}  // namespace optshard
