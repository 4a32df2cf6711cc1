// The trainer of docs/quickstart.md: one rank of a data-parallel job.
#include <torch/torch.h>

#include <cstdio>
#include <exception>

#include "client/checkpoint_directory.h"
#include "client/sharded_optimizer.h"

namespace {

// `checkpoints` is the directory of the job's checkpoints, null where there are none.
void Train(const char* checkpoints) {
  // The environment says which rank this is, how many there are, and where the others are.
  const auto options = optshard::ValueOrThrow(optshard::ShardedOptimizerOptions::FromEnvironment());

  torch::nn::Sequential model(torch::nn::Linear(8, 64), torch::nn::ReLU(),
                              torch::nn::Linear(64, 1));
  // Waits until all ranks have joined, and gives all of them the parameters of rank 0.
  optshard::ShardedOptimizer optimizer(*model, torch::optim::AdamOptions(1e-2), options);

  // A shard server may have the state of a trainer before this one. A job that is started again
  // goes on from its newest checkpoint.
  if (checkpoints != nullptr && optimizer.finished_step() == 0 &&
      optshard::CheckpointDirectory(checkpoints, options).newest()) {
    optimizer.load_checkpoint(checkpoints);
  }

  torch::manual_seed(1 + options.rank);  // every rank trains on its own data
  for (auto step = static_cast<int>(optimizer.finished_step()) + 1; step <= 200; ++step) {
    const auto x = torch::randn({32, 8});
    const auto loss = torch::mse_loss(model->forward(x), x.sum(1, /*keepdim=*/true));
    optimizer.zero_grad();
    loss.backward();
    optimizer
        .step();  // averages the gradients, updates this rank's share, publishes the parameters
    if (step % 50 == 0) {
      std::printf("rank %d step %d loss %.4f\n", options.rank, step, loss.item<double>());
    }
    if (checkpoints != nullptr && step % 100 == 0) {
      optimizer.save_checkpoint(checkpoints);  // written in the background
    }
  }
  optimizer.Close();  // waits for the last checkpoint, and says what went wrong
}

}  // namespace

int main(int argc, char** argv) {
  try {
    Train(argc > 1 ? argv[1] : nullptr);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
