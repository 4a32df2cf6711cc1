// A contestant of ours: one rank whose round is one step of its ShardedOptimizer or several, with
// gradients that are there already.
#include <torch/utils.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "benchmarks/bench_flags.h"
#include "benchmarks/bench_models.h"
#include "benchmarks/job_options.h"
#include "benchmarks/round_protocol.h"
#include "client/rule_options.h"
#include "client/sharded_optimizer.h"
#include "common/gradient_mode.h"

ABSL_FLAG(std::string, model, "layers",
          "layers: --layers of Linear(2000, 2000); tiny: 1000 elements");
ABSL_FLAG(int, layers, 20, "of the model");
ABSL_FLAG(int, steps, 1, "in a round");

namespace optshard {
namespace {

std::vector<at::Tensor> MakeParameters() {
  const std::string model = absl::GetFlag(FLAGS_model);
  if (model == "tiny") return MakeTinyParameters();
  if (model != "layers") throw std::invalid_argument("--model=\"" + model + "\": layers or tiny");
  return MakeLinearLayers(absl::GetFlag(FLAGS_layers))->parameters();
}

Contestant SetUp() {
  torch::set_num_threads(1);
  const ShardedOptimizerOptions options = JobOptions();
  const std::vector<at::Tensor> parameters = MakeParameters();
  const auto optimizer =
      std::make_shared<ShardedOptimizer>(parameters, RuleOptions("adam").Set("lr", 0.01), options);
  const bool averaged = options.gradient_mode == GradientMode::kAveraged;
  FillGradients(parameters, averaged ? 1 : 1 + options.rank);
  const int steps = absl::GetFlag(FLAGS_steps);
  return {[optimizer, steps] {
            for (int i = 0; i < steps; ++i) optimizer->step();
          },
          [parameters] { return CheckOf(parameters); }};
}

}  // namespace
}  // namespace optshard

int main(int argc, char** argv) {
  optshard::ParseBenchFlags(argc, argv, "One rank of ours in a benchmark; run_bench.py drives it.");
  return optshard::ServeRounds(optshard::SetUp);
}
