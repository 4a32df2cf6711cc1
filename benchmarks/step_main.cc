// A contestant of ours: one rank whose round is one step of its ShardedOptimizer or several, with
// gradients that are there already.
#include <torch/utils.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "benchmarks/bench_models.h"
#include "benchmarks/job_options.h"
#include "benchmarks/round_protocol.h"
#include "client/rule_options.h"
#include "client/sharded_optimizer.h"
#include "common/cli/command_line.h"
#include "common/gradient_mode.h"
#include "hwy/targets.h"
#include "server/update/update_rule.h"

namespace optshard {
namespace {

struct Flags {
  std::string rule = "adam";
  double lr = 0.01;
  double momentum = 0;
  std::string model = "layers";
  int layers = 20;
  int steps = 1;
  int sparse_every = 0;
  std::string dtype = "float32";
  bool master_weights = false;
  std::string state_dtype = "float32";
  std::string simd = "best";
  JobFlags job;
};

CommandLine CommandLineOf(Flags& flags) {
  CommandLine line({"optshard-bench-step",
                    "One rank of ours, whose rounds are steps. run_bench.py drives it.",
                    {"optshard-bench-step --model=tiny --steps=100"}});
  line.Add("rule", &flags.rule, "the update rule; its other options have their defaults");
  line.Add("lr", &flags.lr, "its learning rate");
  line.Add("momentum", &flags.momentum, "its momentum; 0: the default");
  line.Add("model", &flags.model, "layers of Linear(2000, 2000), or a tiny one of 1000 elements")
      .OneOf({"layers", "tiny"});
  line.Add("layers", &flags.layers, "how many layers").AtLeast(1);
  line.Add("steps", &flags.steps, "steps in a round").AtLeast(1);
  line.Add("sparse-every", &flags.sparse_every,
           "the matrices only, with sparse gradients of one row in so many; 0: everything")
      .AtLeast(0);
  line.Add("dtype", &flags.dtype, "of the parameters and their gradients")
      .OneOf({"float32", "bfloat16"});
  line.Add("master-weights", &flags.master_weights, "float32 masters of bfloat16 parameters");
  line.Add("state-dtype", &flags.state_dtype, "how the slots are kept")
      .OneOf({"float32", "bfloat16", "int8_dynamic", "int8_companded"});
  line.Add("simd", &flags.simd, "the best instruction set that this CPU has, or AVX2")
      .OneOf({"best", "avx2"});
  AddJobOptions(line, &flags.job);
  return line;
}

std::vector<at::Tensor> MakeParameters(const Flags& flags) {
  if (flags.model == "tiny") return MakeTinyParameters();
  torch::nn::Sequential layers = MakeLinearLayers(flags.layers);
  if (flags.dtype == "bfloat16") layers->to(torch::kBFloat16);
  std::vector<at::Tensor> parameters = layers->parameters();
  if (flags.sparse_every > 0) {
    const auto is_matrix = [](const at::Tensor& each) { return each.dim() == 2; };
    parameters.erase(std::remove_if(parameters.begin(), parameters.end(), std::not_fn(is_matrix)),
                     parameters.end());
  }
  return parameters;
}

// All parameters that the rule takes; the others have AdamW, as users of Muon do.
std::vector<torch::optim::OptimizerParamGroup> MakeGroups(const Flags& flags,
                                                          const std::vector<at::Tensor>& parameters,
                                                          const RuleOptions& rule) {
  const UpdateRule& update = *RuleRegistry::Find(rule.rule()).value();
  std::vector<at::Tensor> taken, others;
  for (const at::Tensor& parameter : parameters) {
    const auto sizes = parameter.sizes();
    const bool takes = update.CheckParameter({sizes.data(), sizes.size()}).ok();
    (takes ? taken : others).push_back(parameter);
  }
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(taken, std::make_unique<RuleOptions>(rule));
  if (!others.empty()) {
    groups.emplace_back(others,
                        std::make_unique<RuleOptions>(RuleOptions("adamw").Set("lr", flags.lr)));
  }
  return groups;
}

Contestant SetUp(const Flags& flags) {
  torch::set_num_threads(1);
  if (flags.simd == "avx2") hwy::SetSupportedTargetsForTest(hwy::SupportedTargets() & HWY_AVX2);
  ShardedOptimizerOptions options = JobOptions(flags.job);
  options.master_weights = flags.master_weights;
  options.state_dtype = flags.state_dtype;
  const std::vector<at::Tensor> parameters = MakeParameters(flags);
  RuleOptions rule = RuleOptions(flags.rule).Set("lr", flags.lr);
  if (flags.momentum != 0) rule.Set("momentum", flags.momentum);
  const auto optimizer =
      std::make_shared<ShardedOptimizer>(MakeGroups(flags, parameters, rule), rule, options);
  const bool averaged = options.gradient_mode == GradientMode::kAveraged;
  const int seed = averaged ? 1 : 1 + options.rank;
  if (flags.sparse_every > 0) {
    FillSparseGradients(parameters, seed, flags.sparse_every);
  } else {
    FillGradients(parameters, seed);
  }
  return {[optimizer, steps = flags.steps] {
            for (int i = 0; i < steps; ++i) optimizer->step();
          },
          [parameters] { return CheckOf(parameters); }};
}

}  // namespace
}  // namespace optshard

int main(int argc, char** argv) {
  return optshard::RunContestant(argc, argv, optshard::CommandLineOf, optshard::SetUp);
}
