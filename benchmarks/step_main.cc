// The contestant "ours" of step_gloo: one rank of the recipe, whose round is one step of its
// ShardedOptimizer, with the same model and the same gradients as peers/recipe_model.py.
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "benchmarks/round_protocol.h"
#include "client/rule_options.h"
#include "client/sharded_optimizer.h"

ABSL_FLAG(int, rank, 0, "this process's rank");
ABSL_FLAG(int, world_size, 1, "number of ranks");
ABSL_FLAG(std::string, plane, "gloo", "the data plane: gloo, shm or auto");
ABSL_FLAG(std::string, embedded_coordinator, "", "HOST:PORT at which rank 0 runs the coordinator");

namespace optshard {
namespace {

constexpr int kLayers = 20;
constexpr int64_t kWidth = 2000;

torch::nn::Sequential MakeModel() {
  torch::manual_seed(0);
  torch::nn::Sequential model;
  for (int i = 0; i < kLayers; ++i) model->push_back(torch::nn::Linear(kWidth, kWidth));
  return model;
}

// In place and for good: what is measured is the optimizer alone.
void FillGradients(const std::vector<at::Tensor>& parameters) {
  torch::NoGradGuard no_grad;
  torch::manual_seed(1);
  for (const at::Tensor& parameter : parameters) {
    const at::Tensor values = torch::randn(parameter.sizes()).mul_(1e-3);
    at::Tensor& gradient = parameter.mutable_grad();
    if (gradient.defined()) {
      gradient.copy_(values);
    } else {
      gradient = values;
    }
  }
}

std::map<std::string, double> Check(const std::vector<at::Tensor>& parameters) {
  torch::NoGradGuard no_grad;
  double sum_of_magnitudes = 0;
  double sum_of_squares = 0;
  for (const at::Tensor& parameter : parameters) {
    const at::Tensor values = parameter.to(torch::kFloat64);
    sum_of_magnitudes += values.abs().sum().item<double>();
    sum_of_squares += values.square().sum().item<double>();
  }
  return {{"sum_of_magnitudes", sum_of_magnitudes}, {"sum_of_squares", sum_of_squares}};
}

Contestant SetUp() {
  torch::set_num_threads(1);
  ShardedOptimizerOptions options;
  options.job = "benchmark";
  options.rank = absl::GetFlag(FLAGS_rank);
  options.world_size = absl::GetFlag(FLAGS_world_size);
  options.embedded_coordinator = absl::GetFlag(FLAGS_embedded_coordinator);
  options.plane = absl::GetFlag(FLAGS_plane);
  options.gradient_mode = GradientMode::kAveraged;
  options.parameters_as_bucket_view = true;
  options.threads = 1;
  const torch::nn::Sequential model = MakeModel();
  const auto optimizer =
      std::make_shared<ShardedOptimizer>(*model, RuleOptions("adam").Set("lr", 0.01), options);
  const std::vector<at::Tensor> parameters = model->parameters();
  FillGradients(parameters);
  return {[optimizer] { optimizer->step(); }, [parameters] { return Check(parameters); }};
}

}  // namespace
}  // namespace optshard

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage("One rank of ours in a benchmark; run_bench.py drives it.");
  absl::ParseCommandLine(argc, argv);
  return optshard::ServeRounds(optshard::SetUp);
}
