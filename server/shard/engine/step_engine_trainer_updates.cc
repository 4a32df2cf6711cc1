#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "server/shard/engine/commit_decision.h"
#include "server/shard/engine/commit_vote.h"
#include "server/shard/engine/step_engine.h"

namespace optshard {

// What an update has done to its own state cannot be undone. So the step is torn for good once one
// has failed, although all parameters are those of the step before.
StepEngine::Result StepEngine::RunTrainerUpdates(const ReplicaMemory& replica,
                                                 absl::Time deadline) {
  const absl::Status ran = exchange_->RunTrainerUpdates(record_, replica);
  std::vector<CommitVote> votes;
  bool sent = false;
  absl::Status status = GatherVotes(
      kTrainerUpdatesHaveRun, MakeVote(replica, ran, CommitCall::kStep), deadline, &votes, &sent);
  if (!status.ok()) return Failed(std::move(status), StepOutcome::kTorn);
  CommitDecision decision;
  decision.status = DecideTrainerUpdates(votes);
  decision.is_final = true;
  if (decision.status.ok()) return Result();
  Result result = GivenUp(decision, deadline);
  result.outcome = StepOutcome::kTorn;
  return result;
}

}  // namespace optshard
