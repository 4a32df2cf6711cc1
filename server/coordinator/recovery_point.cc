#include "server/coordinator/recovery_point.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/errors.h"
#include "common/fatal.h"

namespace optshard {
namespace {

OwnerPhase PhaseOf(StepOutcome outcome) {
  switch (outcome) {
    case StepOutcome::kIdle:
    case StepOutcome::kInStep:
    case StepOutcome::kNotApplied:
    case StepOutcome::kRefusing:
      return OwnerPhase::kFinished;
    case StepOutcome::kInDoubt:
      return OwnerPhase::kPrepared;
    case StepOutcome::kTorn:
      return OwnerPhase::kApplying;
    case StepOutcome::kApplied:
      return OwnerPhase::kApplied;
  }
  // Of a newer version: its state may be anything.
  return OwnerPhase::kApplying;
}

// "rank 1 brings", "ranks 1, 3 bring".
std::string Bring(const std::vector<Rank>& ranks) {
  return ranks.size() == 1 ? absl::StrCat("rank ", ranks[0], " brings")
                           : absl::StrCat("ranks ", absl::StrJoin(ranks, ", "), " bring");
}

// A torn step whose cause has a text of its own and names these ranks to code, too.
absl::Status Torn(StepNumber step, const std::vector<Rank>& ranks, absl::string_view cause) {
  const absl::Status disagree = errors::RanksDisagree(ranks, cause);
  absl::Status named(disagree.code(), cause);
  errors::AttachPayload(named, errors::EncodePayload(disagree));
  return errors::TornStep(step, named);
}

}  // namespace

OwnerSteps StepsOf(const StepProgress& progress, bool is_final) {
  if (!is_final && !IsOpen(progress.outcome)) return OwnerSteps{0, OwnerPhase::kUnknown};
  return OwnerSteps{progress.finished, PhaseOf(progress.outcome), progress.skipped};
}

absl::StatusOr<StepProgress> FindRecoveryPoint(absl::Span<const absl::optional<KeptState>> kept) {
  std::vector<absl::optional<OwnerSteps>> owners(kept.size());
  std::vector<Rank> with;
  for (size_t rank = 0; rank < kept.size(); ++rank) {
    if (!kept[rank].has_value()) continue;
    owners[rank] = StepsOf(kept[rank]->progress);
    with.push_back(static_cast<Rank>(rank));
  }
  const StepDecision decision = DecideTransition(owners);
  const std::vector<Rank>& ranks = decision.ranks;
  switch (decision.transition) {
    case StepTransition::kBegin:
    case StepTransition::kGoOn:
      break;
    case StepTransition::kStateMissing:
      return errors::RanksDisagree(
          ranks, absl::StrCat(Bring(with), " the state of step ", decision.step, ", ", Bring(ranks),
                              " none; start all ranks anew, or all from one checkpoint"));
    case StepTransition::kInterrupted:
      return Torn(
          decision.step, ranks,
          absl::StrCat(Bring(ranks), " the state of a life that ended while it applied the step"));
    case StepTransition::kBehind:
      return Torn(decision.step, ranks,
                  absl::StrFormat("rank %d has applied it, %s the state of step %d", decision.ahead,
                                  Bring(ranks), owners[ranks.front()]->applied()));
    case StepTransition::kInDoubt:
    case StepTransition::kNotKnown:
      Fatal("of all %d ranks it is known what they bring", owners.size());
  }
  return StepProgress{decision.step, StepOutcome::kIdle, decision.skipped};
}

}  // namespace optshard
