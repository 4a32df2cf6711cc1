// A trainer like that of the quickstart, for tests of optshard-run: its data depend on rank and
// step only, and with --die-at=N rank 1 kills itself before step N, in its first life. Prints the
// parameters' checksum in the end.
#include <torch/torch.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>

#include "absl/time/time.h"
#include "client/parameters_checksum.h"
#include "client/sharded_optimizer.h"

namespace {

constexpr int kSteps = 40;
constexpr char kDieAt[] = "--die-at=";

int Number(const char* variable) {
  const char* const value = std::getenv(variable);
  return value == nullptr ? 0 : std::atoi(value);
}

void Train(int die_at) {
  auto options = optshard::ValueOrThrow(optshard::ShardedOptimizerOptions::FromEnvironment());
  options.step_timeout = absl::Seconds(5);  // how long it waits for a node that does not come back
  torch::manual_seed(0);
  torch::nn::Sequential model(torch::nn::Linear(8, 64), torch::nn::ReLU(),
                              torch::nn::Linear(64, 1));
  optshard::ShardedOptimizer optimizer(*model, torch::optim::AdamOptions(1e-2), options);
  const int first = static_cast<int>(optimizer.finished_step()) + 1;
  std::printf("begins at step %d\n", first);
  std::fflush(stdout);
  for (int step = first; step <= kSteps; ++step) {
    if (step == die_at && options.rank == 1 && Number("TORCHELASTIC_RESTART_COUNT") == 0) {
      std::fprintf(stderr, "dies before step %d\n", step);
      std::raise(SIGKILL);
    }
    torch::manual_seed(1000 * step + options.rank);
    const auto x = torch::randn({32, 8});
    const auto loss = torch::mse_loss(model->forward(x), x.sum(1, /*keepdim=*/true));
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
  }
  std::printf("checksum %016llx\n",
              static_cast<unsigned long long>(optshard::ParametersChecksum(model->parameters())));
}

}  // namespace

int main(int argc, char** argv) {
  int die_at = 0;
  if (argc > 1 && std::strncmp(argv[1], kDieAt, std::strlen(kDieAt)) == 0) {
    die_at = std::atoi(argv[1] + std::strlen(kDieAt));
  }
  try {
    Train(die_at);
    return EXIT_SUCCESS;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return EXIT_FAILURE;
  }
}
