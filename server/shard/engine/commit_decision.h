// Decides from the votes of all ranks: a pure function, so that every rank decides alike.
#ifndef OPTSHARD_SERVER_SHARD_ENGINE_COMMIT_DECISION_H_
#define OPTSHARD_SERVER_SHARD_ENGINE_COMMIT_DECISION_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/gradient_mode.h"
#include "common/hyperparameters.h"
#include "common/ids.h"
#include "common/parameter_space.h"
#include "server/shard/engine/commit_vote.h"

namespace optshard {

struct CommitDecision {
  // OK: the step is applied. Otherwise all ranks give it up, with this error.
  absl::Status status;
  // Of an error: the ranks do not belong together. Otherwise a later call can succeed, once what
  // the error says is corrected.
  bool is_final = false;
  // By parameter: whether it is updated, since some rank has a gradient of it.
  std::vector<bool> updated;
  // By parameter: whether some rank's gradient is sparse.
  std::vector<bool> sparse;
  bool skipped = false;  // nothing is updated
  // The hyperparameters differ: in a second round the ranks exchange their texts, and
  // DescribeDifference completes `status`.
  bool hyperparameters_differ = false;
};

// `votes` by rank; `expected` is this rank's own. `incarnations` are those seen in earlier steps
// (0: none yet). Reasons to give up, the first that holds:
//   StaleGeneration, StaleIncarnation  a process of another life of the job takes part; final
//   RanksDisagree                      ranks are at different steps; final
//   TrainerGone                        the ranks that give up do so because their trainers are gone
//   a rank's own code, naming it       it could not prepare the step (its input is invalid)
//   RanksDisagree                      some ranks step, others synchronise or verify their
//                                      parameters, or consolidate or load state
//   ABORTED                            ranks are at different exchanges of one call: some of them
//                                      have begun it again
//   RanksDisagree                      hyperparameters of a group differ
//   RanksDisagree                      kAveraged, and a gradient is missing on some ranks
//   RanksDisagree                      a gradient is sparse on some ranks and dense on others
CommitDecision Decide(absl::Span<const CommitVote> votes, const CommitVote& expected,
                      absl::Span<const Incarnation> incarnations, GradientMode mode,
                      const ParameterSpace& space);

// As Decide, for a call that is no step: without what concerns hyperparameters and gradients.
CommitDecision DecideCall(absl::Span<const CommitVote> votes, const CommitVote& expected,
                          absl::Span<const Incarnation> incarnations);

// After the updates of the trainer's own have run, whose errors the votes have: OK where none
// failed, else TornState, which names the ranks.
absl::Status DecideTrainerUpdates(absl::Span<const CommitVote> votes);

// The text of the second round: every hyperparameter of every group, a line each.
std::string HyperparameterText(absl::Span<const Hyperparameters> groups);

// From the texts of all ranks, the first difference with both values, such as
//   group 1: lr is 0.01 on rank 0 but 0.02 on rank 2
std::string DescribeDifference(absl::Span<const std::string> texts);

}  // namespace optshard

#endif  // OPTSHARD_SERVER_SHARD_ENGINE_COMMIT_DECISION_H_
