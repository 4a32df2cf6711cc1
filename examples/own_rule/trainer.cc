// A trainer with an update rule of its own (signum.cc). As the rule is linked into this program,
// the shard owner is, too: embedded. A shard server has the rules it was built with.
#include <torch/torch.h>

#include <cstdio>
#include <exception>

#include "client/sharded_optimizer.h"

namespace {

void Train() {
  const auto options = optshard::ValueOrThrow(optshard::ShardedOptimizerOptions::FromEnvironment());
  torch::nn::Linear model(8, 1);
  const auto signum = optshard::RuleOptions("signum").Set("lr", 1e-2).Set("momentum", 0.8);
  optshard::ShardedOptimizer optimizer(*model, signum, options);

  torch::manual_seed(1 + options.rank);
  for (int step = 1; step <= 100; ++step) {
    const auto x = torch::randn({32, 8});
    const auto loss = torch::mse_loss(model->forward(x), x.sum(1, /*keepdim=*/true));
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
    if (step % 25 == 0) {
      std::printf("rank %d step %d loss %.4f\n", options.rank, step, loss.item<double>());
    }
  }
}

}  // namespace

int main() {
  try {
    Train();
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
