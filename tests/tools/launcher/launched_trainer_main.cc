// A trainer like that of the quickstart, for tests of optshard-run: its data depend on rank and
// step only. Prints the parameters' checksum in the end.
#include <torch/torch.h>

#include <cinttypes>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/time/time.h"
#include "client/parameters_checksum.h"
#include "client/sharded_optimizer.h"

ABSL_FLAG(int, steps, 40, "how many");
ABSL_FLAG(int, step_timeout_s, 60, "how long a step waits for ranks that are gone");
ABSL_FLAG(int, die_at, 0,
          "step before which rank 1 kills itself, where it has no predecessor; 0: none");

namespace {

int Number(const char* variable) {
  const char* const value = std::getenv(variable);
  return value == nullptr ? 0 : std::atoi(value);
}

void Train() {
  auto options = optshard::ValueOrThrow(optshard::ShardedOptimizerOptions::FromEnvironment());
  options.step_timeout = absl::Seconds(absl::GetFlag(FLAGS_step_timeout_s));
  torch::manual_seed(0);
  torch::nn::Sequential model(torch::nn::Linear(8, 64), torch::nn::ReLU(),
                              torch::nn::Linear(64, 1));
  optshard::ShardedOptimizer optimizer(*model, torch::optim::AdamOptions(1e-2), options);
  const int first = static_cast<int>(optimizer.finished_step()) + 1;
  std::printf("begins at step %d\n", first);
  std::fflush(stdout);
  for (int step = first; step <= absl::GetFlag(FLAGS_steps); ++step) {
    if (step == absl::GetFlag(FLAGS_die_at) && options.rank == 1 &&
        Number("TORCHELASTIC_RESTART_COUNT") == 0) {
      std::raise(SIGKILL);
    }
    torch::manual_seed(1000 * step + options.rank);
    const auto x = torch::randn({32, 8});
    const auto loss = torch::mse_loss(model->forward(x), x.sum(1, /*keepdim=*/true));
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
    if (step == first) {
      std::printf("has done a step\n");
      std::fflush(stdout);
    }
  }
  std::printf("checksum %016" PRIx64 "\n", optshard::ParametersChecksum(model->parameters()));
}

}  // namespace

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  try {
    Train();
    return EXIT_SUCCESS;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return EXIT_FAILURE;
  }
}
