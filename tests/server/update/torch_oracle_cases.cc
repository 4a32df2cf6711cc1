#include "tests/server/update/torch_oracle_cases.h"

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <utility>

namespace optshard {
namespace {

template <typename Optimizer, typename Options>
OptimizerFactory Torch(const Options& options) {
  return [options](const std::vector<torch::Tensor>& parameters) {
    return std::make_unique<Optimizer>(parameters, options);
  };
}

Hyperparameters Given(const std::vector<std::pair<std::string, HyperValue>>& values) {
  Hyperparameters group;
  for (const auto& [name, value] : values) group.Set(name, value);
  return group;
}

}  // namespace

std::vector<OracleCase> AdamCases() {
  using torch::optim::Adam;
  using torch::optim::AdamOptions;
  std::vector<OracleCase> cases;
  cases.push_back({"Defaults", "adam", {}, Torch<Adam>(AdamOptions())});
  cases.push_back({"Maximize", "adam", Given({{"maximize", true}}), Torch<Adam>(AdamOptions())});
  cases.push_back({"LargeLr", "adam", Given({{"lr", 0.1}}), Torch<Adam>(AdamOptions(0.1))});
  cases.push_back({"WeightDecay", "adam", Given({{"weight_decay", 0.1}, {"lr", 0.01}}),
                   Torch<Adam>(AdamOptions(0.01).weight_decay(0.1))});
  cases.push_back({"Amsgrad", "adam", Given({{"amsgrad", true}, {"lr", 0.01}}),
                   Torch<Adam>(AdamOptions(0.01).amsgrad(true))});
  cases.push_back({"GanBetas", "adam", Given({{"betas", Numbers{0.5, 0.9}}, {"eps", 1e-3}}),
                   Torch<Adam>(AdamOptions().betas({0.5, 0.9}).eps(1e-3))});
  cases.push_back({"LowBeta1", "adam", Given({{"betas", Numbers{0.1, 0.99}}}),
                   Torch<Adam>(AdamOptions().betas({0.1, 0.99}))});
  cases.push_back({"NoFirstMoment", "adam", Given({{"betas", Numbers{0.0, 0.9}}}),
                   Torch<Adam>(AdamOptions().betas({0.0, 0.9}))});
  cases.push_back({"SlowBeta2", "adam", Given({{"betas", Numbers{0.95, 0.9999}}}),
                   Torch<Adam>(AdamOptions().betas({0.95, 0.9999}))});
  cases.push_back({"SmallGradients", "adam", Given({{"lr", 0.01}}), Torch<Adam>(AdamOptions(0.01)),
                   0.01, 1e-6});
  cases.push_back({"FromZero", "adam", Given({{"lr", 0.01}}), Torch<Adam>(AdamOptions(0.01)), 0});
  return cases;
}

std::vector<OracleCase> AdamWCases() {
  using torch::optim::AdamW;
  using torch::optim::AdamWOptions;
  std::vector<OracleCase> cases;
  cases.push_back({"Defaults", "adamw", {}, Torch<AdamW>(AdamWOptions())});
  cases.push_back({"Maximize", "adamw", Given({{"maximize", true}, {"lr", 0.01}}),
                   Torch<AdamW>(AdamWOptions(0.01))});
  cases.push_back({"StrongDecay", "adamw", Given({{"weight_decay", 0.1}, {"lr", 0.01}}),
                   Torch<AdamW>(AdamWOptions(0.01).weight_decay(0.1))});
  cases.push_back({"Amsgrad", "adamw",
                   Given({{"amsgrad", true}, {"betas", Numbers{0.8, 0.95}}, {"lr", 0.01}}),
                   Torch<AdamW>(AdamWOptions(0.01).betas({0.8, 0.95}).amsgrad(true))});
  return cases;
}

std::vector<OracleCase> SgdCases() {
  using torch::optim::SGD;
  using torch::optim::SGDOptions;
  std::vector<OracleCase> cases;
  cases.push_back({"Defaults", "sgd", {}, Torch<SGD>(SGDOptions(1e-3))});
  cases.push_back({"Maximize", "sgd", Given({{"maximize", true}, {"lr", 0.1}, {"momentum", 0.9}}),
                   Torch<SGD>(SGDOptions(0.1).momentum(0.9))});
  cases.push_back({"WeightDecay", "sgd", Given({{"lr", 0.1}, {"weight_decay", 0.1}}),
                   Torch<SGD>(SGDOptions(0.1).weight_decay(0.1))});
  cases.push_back({"Momentum", "sgd", Given({{"lr", 0.05}, {"momentum", 0.9}}),
                   Torch<SGD>(SGDOptions(0.05).momentum(0.9))});
  cases.push_back({"Dampening", "sgd", Given({{"lr", 0.05}, {"momentum", 0.9}, {"dampening", 0.3}}),
                   Torch<SGD>(SGDOptions(0.05).momentum(0.9).dampening(0.3))});
  cases.push_back(
      {"Nesterov", "sgd",
       Given({{"lr", 0.05}, {"momentum", 0.8}, {"nesterov", true}, {"weight_decay", 0.01}}),
       Torch<SGD>(SGDOptions(0.05).momentum(0.8).nesterov(true).weight_decay(0.01))});
  cases.push_back({"FromZero", "sgd", Given({{"lr", 0.1}, {"momentum", 0.5}}),
                   Torch<SGD>(SGDOptions(0.1).momentum(0.5)), 0});
  return cases;
}

std::vector<OracleCase> AdagradCases() {
  using torch::optim::Adagrad;
  using torch::optim::AdagradOptions;
  std::vector<OracleCase> cases;
  cases.push_back({"Defaults", "adagrad", {}, Torch<Adagrad>(AdagradOptions())});
  cases.push_back({"Maximize", "adagrad", Given({{"maximize", true}, {"lr", 0.1}}),
                   Torch<Adagrad>(AdagradOptions(0.1))});
  cases.push_back({"LrDecay", "adagrad", Given({{"lr", 0.1}, {"lr_decay", 0.05}}),
                   Torch<Adagrad>(AdagradOptions(0.1).lr_decay(0.05))});
  cases.push_back(
      {"InitialValue", "adagrad",
       Given({{"initial_accumulator_value", 0.3}, {"weight_decay", 0.1}, {"eps", 1e-3}}),
       Torch<Adagrad>(
           AdagradOptions().initial_accumulator_value(0.3).weight_decay(0.1).eps(1e-3))});
  return cases;
}

std::vector<OracleCase> RmspropCases() {
  using torch::optim::RMSprop;
  using torch::optim::RMSpropOptions;
  std::vector<OracleCase> cases;
  cases.push_back({"Defaults", "rmsprop", {}, Torch<RMSprop>(RMSpropOptions())});
  cases.push_back({"Maximize", "rmsprop", Given({{"maximize", true}, {"alpha", 0.9}}),
                   Torch<RMSprop>(RMSpropOptions().alpha(0.9))});
  cases.push_back({"WeightDecay", "rmsprop", Given({{"weight_decay", 0.1}, {"eps", 1e-3}}),
                   Torch<RMSprop>(RMSpropOptions().weight_decay(0.1).eps(1e-3))});
  cases.push_back({"Momentum", "rmsprop", Given({{"momentum", 0.9}}),
                   Torch<RMSprop>(RMSpropOptions().momentum(0.9))});
  cases.push_back({"Centered", "rmsprop", Given({{"centered", true}}),
                   Torch<RMSprop>(RMSpropOptions().centered(true))});
  cases.push_back({"CenteredMomentum", "rmsprop", Given({{"centered", true}, {"momentum", 0.9}}),
                   Torch<RMSprop>(RMSpropOptions().centered(true).momentum(0.9))});
  return cases;
}

}  // namespace optshard
