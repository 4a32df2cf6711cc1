// A contestant of ours, and a limit: one rank of the recipe whose round is a whole iteration,
// forward, backward, step and zero_grad; or forward and backward alone.
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/utils.h>

#include <memory>
#include <string>
#include <vector>

#include "benchmarks/bench_models.h"
#include "benchmarks/job_options.h"
#include "benchmarks/recipe_training.h"
#include "benchmarks/round_protocol.h"
#include "client/rule_options.h"
#include "client/sharded_optimizer.h"
#include "common/cli/command_line.h"

namespace optshard {
namespace {

struct Flags {
  int layers = 20;
  int rows = 20;
  bool step = true;
  bool drop_gradients = false;
  JobFlags job;
};

CommandLine CommandLineOf(Flags& flags) {
  CommandLine line({"optshard-bench-iteration",
                    "One rank of the recipe, whose rounds are iterations. run_bench.py drives it.",
                    {"optshard-bench-iteration --layers=4"}});
  line.Add("layers", &flags.layers, "how many layers of Linear(2000, 2000)").AtLeast(1);
  line.Add("rows", &flags.rows, "of a rank's batch").AtLeast(1);
  line.Add("step", &flags.step, "step after forward and backward; without it the gradients add up");
  line.Add("drop-gradients", &flags.drop_gradients,
           "with --no-step: drop each gradient as soon as it is computed");
  AddJobOptions(line, &flags.job);
  return line;
}

class DropGradient : public torch::autograd::PostAccumulateGradHook {
 public:
  void operator()(const at::Tensor& parameter) override { parameter.mutable_grad().reset(); }
};

Contestant SetUp(const Flags& flags) {
  torch::set_num_threads(1);
  const ShardedOptimizerOptions options = JobOptions(flags.job);
  const auto training = std::make_shared<RecipeTraining>(flags.layers, flags.rows, options.rank);
  const std::vector<at::Tensor> parameters = training->model()->parameters();
  const auto check = [parameters] { return CheckOf(parameters); };
  if (!flags.step) {
    for (const at::Tensor& parameter : parameters) {
      if (!flags.drop_gradients) break;
      torch::autograd::impl::set_post_acc_grad_hooks(parameter, std::make_unique<DropGradient>());
    }
    return {[training] { training->ForwardBackward(); }, check};
  }
  const auto optimizer =
      std::make_shared<ShardedOptimizer>(parameters, RuleOptions("adam").Set("lr", 0.01), options);
  return {[training, optimizer] {
            training->ForwardBackward();
            optimizer->step();
            optimizer->zero_grad();
          },
          check};
}

}  // namespace
}  // namespace optshard

int main(int argc, char** argv) {
  return optshard::RunContestant(argc, argv, optshard::CommandLineOf, optshard::SetUp);
}
