// A contestant of ours, and a limit: one rank of the recipe whose round is a whole iteration,
// forward, backward, step and zero_grad; or forward and backward alone.
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/randn.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/utils.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "benchmarks/bench_flags.h"
#include "benchmarks/bench_models.h"
#include "benchmarks/job_options.h"
#include "benchmarks/round_protocol.h"
#include "client/rule_options.h"
#include "client/sharded_optimizer.h"

ABSL_FLAG(int, layers, 20, "of Linear(2000, 2000)");
ABSL_FLAG(int, rows, 20, "of a rank's batch");
ABSL_FLAG(bool, step, true, "false: forward and backward alone, which adds up gradients");
ABSL_FLAG(bool, drop_gradients, false, "without step: nobody keeps them");

namespace optshard {
namespace {

// The same batch each time, another on every rank.
struct Training {
  Training(int layers, int rows, int rank) : model(MakeLinearLayers(layers)) {
    torch::manual_seed(100 + rank);
    inputs = at::randn({rows, kRecipeWidth});
    targets = at::randn({rows, kRecipeWidth});
  }

  void ForwardBackward() { at::mse_loss(model->forward(inputs), targets).backward(); }

  torch::nn::Sequential model;
  at::Tensor inputs, targets;
};

class DropGradient : public torch::autograd::PostAccumulateGradHook {
 public:
  void operator()(const at::Tensor& parameter) override { parameter.mutable_grad().reset(); }
};

Contestant SetUp() {
  torch::set_num_threads(1);
  const ShardedOptimizerOptions options = JobOptions();
  const auto training = std::make_shared<Training>(absl::GetFlag(FLAGS_layers),
                                                   absl::GetFlag(FLAGS_rows), options.rank);
  const std::vector<at::Tensor> parameters = training->model->parameters();
  const auto check = [parameters] { return CheckOf(parameters); };
  if (!absl::GetFlag(FLAGS_step)) {
    for (const at::Tensor& parameter : parameters) {
      if (!absl::GetFlag(FLAGS_drop_gradients)) break;
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
  optshard::ParseBenchFlags(argc, argv,
                            "One rank of the recipe in a benchmark; run_bench.py drives it.");
  return optshard::ServeRounds(optshard::SetUp);
}
