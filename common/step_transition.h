// What the owners of a job have of its steps, and how they go on: one pure function. The first row
// that fits counts.
//
//   transition     what the owners have                              how they go on
//   begin          nobody brings state                               after step 0
//   state missing  some bring state, others none                     not at all
//   interrupted    an owner was applying a step                      not at all: torn
//   behind         some have not applied the last step others have   not at all: torn
//   in doubt       some have prepared a step, others are not known   not yet: torn for now
//   not known      what some have is not known                       not yet
//   go on          all have applied the same steps                   after the last of them
//
// docs/life_of_a_step.md has the same table for people.
#ifndef OPTSHARD_COMMON_STEP_TRANSITION_H_
#define OPTSHARD_COMMON_STEP_TRANSITION_H_

#include <cstdint>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "common/ids.h"

namespace optshard {

// What an owner has of the step after the last one that it has finished.
enum class OwnerPhase : uint8_t {
  kFinished = 1,  // nothing that others could know of
  kPrepared = 2,  // its vote may have reached others; its state is that of the finished step
  kApplying = 3,  // its state is of both steps
  kApplied = 4,   // its state is of that step; what the others have is not known to it
  kUnknown = 5,   // nobody has heard of it: `finished` and `skipped` say nothing
};

struct OwnerSteps {
  StepNumber finished = 0;
  OwnerPhase phase = OwnerPhase::kFinished;
  uint64_t skipped = 0;  // calls of step() so far that were skipped, as far as it knows

  // The last step that it has applied in full.
  StepNumber applied() const { return finished + (phase == OwnerPhase::kApplied ? 1 : 0); }
};

enum class StepTransition : uint8_t {
  kBegin = 1,
  kStateMissing = 2,
  kInterrupted = 3,
  kBehind = 4,
  kInDoubt = 5,
  kNotKnown = 6,
  kGoOn = 7,
};
absl::string_view NameOf(StepTransition transition);  // as in the table
// Whether a step is torn, or must be taken to be until more is known.
bool IsTorn(StepTransition transition);

struct StepDecision {
  StepTransition transition = StepTransition::kBegin;
  // kBegin and kGoOn: the step after which the owners go on. kStateMissing: the one of which the
  // first owner with state has applied all. kNotKnown: the last one that is known to be applied.
  // Otherwise the step that is torn.
  StepNumber step = 0;
  uint64_t skipped = 0;  // kGoOn: skipped calls before it
  // Why not: those without state, that were applying, that are behind, that have prepared the step,
  // of which nothing is known.
  std::vector<Rank> ranks;
  Rank ahead = -1;  // kBehind: the lowest rank that has applied the torn step
};

// `owners` is by rank, nullopt for one that brings no state. Every order of the ranks gives the
// same decision, but for the ranks that it names. Thread-safe.
StepDecision DecideTransition(absl::Span<const absl::optional<OwnerSteps>> owners);

}  // namespace optshard

#endif  // OPTSHARD_COMMON_STEP_TRANSITION_H_
