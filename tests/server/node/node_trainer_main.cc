// A trainer without LibTorch as a process of its own, for tests of programs:
//   node_trainer SOCKET RANK WORLD_SIZE STEPS [LEARNING_RATE]
// attaches to the shard server of job "test", steps, says "stepped" and stays until its input ends.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <memory>

#include "tests/server/node/node_rig.h"

namespace optshard::testing {
namespace {

int Fail(const absl::Status& status) {
  std::fprintf(stderr, "node_trainer: %s\n", status.ToString().c_str());
  return 1;
}

int Main(int argc, char** argv) {
  AttachedOwner::Options options =
      NodeTrainer::DefaultOptions(argv[1], std::atoi(argv[2]), std::atoi(argv[3]));
  options.job = "test";
  const absl::StatusOr<std::unique_ptr<NodeTrainer>> trainer = NodeTrainer::Start(options);
  if (!trainer.ok()) return Fail(trainer.status());
  if (argc > 5) (*trainer)->SetLearningRate(std::atof(argv[5]));
  const absl::Status stepped = (*trainer)->StepUntil(std::atoi(argv[4]));
  if (!stepped.ok()) return Fail(stepped);
  std::puts("stepped");
  std::fflush(stdout);
  char byte;
  while (read(STDIN_FILENO, &byte, 1) > 0) {
  }
  return 0;
}

}  // namespace
}  // namespace optshard::testing

int main(int argc, char** argv) {
  if (argc == 5 || argc == 6) return optshard::testing::Main(argc, argv);
  std::fprintf(stderr, "usage: node_trainer SOCKET RANK WORLD_SIZE STEPS [LEARNING_RATE]\n");
  return 2;
}
