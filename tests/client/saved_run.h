// A run that nobody disturbs, and a checkpoint of it, for tests of runs that load that.
#ifndef OPTSHARD_TESTS_CLIENT_SAVED_RUN_H_
#define OPTSHARD_TESTS_CLIENT_SAVED_RUN_H_

#include <string>
#include <vector>

#include "client/sharded_optimizer_options.h"
#include "tests/client/written_checkpoint.h"
#include "tests/testing/client_ranks.h"

namespace optshard::testing {

struct SavedRun {
  std::string root = NewCheckpointRoot();
  std::vector<std::string> at_first_step;
  std::vector<std::string> expected;  // after the last one
};

// `Trainer` is one rank: StepTo(), State(), optimizer(), parameters(). The checkpoint is that of
// step `saved`, with "blob".
template <typename Trainer>
SavedRun SaveRun(int world_size, int saved, int last) {
  SavedRun made;
  WrittenCheckpoint checkpoint(made.root);
  ExpectAllOk(RunRanks(world_size, [&](const ShardedOptimizerOptions& options) {
    Trainer trainer(options);
    trainer.StepTo(1);
    const std::vector<std::string> first = trainer.State();
    if (options.rank == 0) made.at_first_step = first;
    trainer.StepTo(saved);
    checkpoint.WriteShare(trainer.optimizer(), trainer.parameters(), "blob");
    trainer.StepTo(last);
    const std::vector<std::string> state = trainer.State();
    if (options.rank == 0) made.expected = state;
    trainer.optimizer().Close();
  }));
  checkpoint.Commit();
  return made;
}

}  // namespace optshard::testing

#endif  // OPTSHARD_TESTS_CLIENT_SAVED_RUN_H_
