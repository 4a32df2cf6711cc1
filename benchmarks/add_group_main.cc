// A contestant of ours: one rank that adds a param group, of one Linear(2000, 2000), in each round.
#include <torch/optim/optimizer.h>
#include <torch/utils.h>

#include <memory>
#include <string>
#include <vector>

#include "benchmarks/bench_models.h"
#include "benchmarks/job_options.h"
#include "benchmarks/round_protocol.h"
#include "client/rule_options.h"
#include "client/sharded_optimizer.h"
#include "common/cli/command_line.h"

namespace optshard {
namespace {

struct Flags {
  int layers = 4;
  JobFlags job;
};

CommandLine CommandLineOf(Flags& flags) {
  CommandLine line(
      {"optshard-bench-add-group",
       "One rank of ours, whose rounds add a param group each. run_bench.py drives it.",
       {"optshard-bench-add-group --layers=2"}});
  line.Add("layers", &flags.layers, "how many layers of Linear(2000, 2000) there are at first")
      .AtLeast(1);
  AddJobOptions(line, &flags.job);
  return line;
}

// What is added next, and all that was added.
struct Added {
  std::vector<at::Tensor> next = MakeLinearLayers(1)->parameters();
  std::vector<at::Tensor> all;
};

Contestant SetUp(const Flags& flags) {
  torch::set_num_threads(1);
  const ShardedOptimizerOptions options = JobOptions(flags.job);
  const std::vector<at::Tensor> parameters = MakeLinearLayers(flags.layers)->parameters();
  const auto optimizer =
      std::make_shared<ShardedOptimizer>(parameters, RuleOptions("adam").Set("lr", 0.01), options);
  FillGradients(parameters, 1 + options.rank);
  optimizer->step();
  const auto added = std::make_shared<Added>();
  const auto round = [optimizer, added] {
    optimizer->add_param_group(torch::optim::OptimizerParamGroup(added->next));
  };
  return {round, [added] { return CheckOf(added->all); },
          [added] {
            added->all.insert(added->all.end(), added->next.begin(), added->next.end());
            added->next = MakeLinearLayers(1)->parameters();
          }};
}

}  // namespace
}  // namespace optshard

int main(int argc, char** argv) {
  return optshard::RunContestant(argc, argv, optshard::CommandLineOf, optshard::SetUp);
}
