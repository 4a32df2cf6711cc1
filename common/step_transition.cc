#include "common/step_transition.h"

#include <algorithm>

namespace optshard {
namespace {

// The ranks of the owners for which `fits` is true.
template <typename Fits>
std::vector<Rank> RanksWhere(absl::Span<const absl::optional<OwnerSteps>> owners,
                             const Fits& fits) {
  std::vector<Rank> ranks;
  for (size_t rank = 0; rank < owners.size(); ++rank) {
    if (fits(owners[rank])) ranks.push_back(static_cast<Rank>(rank));
  }
  return ranks;
}

}  // namespace

absl::string_view NameOf(StepTransition transition) {
  switch (transition) {
    case StepTransition::kBegin:
      return "begin";
    case StepTransition::kStateMissing:
      return "state missing";
    case StepTransition::kInterrupted:
      return "interrupted";
    case StepTransition::kBehind:
      return "behind";
    case StepTransition::kInDoubt:
      return "in doubt";
    case StepTransition::kNotKnown:
      return "not known";
    case StepTransition::kGoOn:
      return "go on";
  }
  return "unknown";
}

bool IsTorn(StepTransition transition) {
  return transition == StepTransition::kInterrupted || transition == StepTransition::kBehind ||
         transition == StepTransition::kInDoubt;
}

StepDecision DecideTransition(absl::Span<const absl::optional<OwnerSteps>> owners) {
  using Owner = absl::optional<OwnerSteps>;
  StepDecision decision;
  const auto in_phase = [](OwnerPhase phase) {
    return [phase](const Owner& owner) { return owner.has_value() && owner->phase == phase; };
  };
  const auto is_known = [](const Owner& owner) {
    return owner.has_value() && owner->phase != OwnerPhase::kUnknown;
  };
  const std::vector<Rank> known = RanksWhere(owners, is_known);
  const std::vector<Rank> unknown = RanksWhere(owners, in_phase(OwnerPhase::kUnknown));
  if (known.empty()) {
    decision.ranks = unknown;
    if (!unknown.empty()) decision.transition = StepTransition::kNotKnown;
    return decision;
  }
  decision.ranks = RanksWhere(owners, [](const Owner& owner) { return !owner.has_value(); });
  if (!decision.ranks.empty()) {
    decision.transition = StepTransition::kStateMissing;
    decision.step = owners[known.front()]->applied();
    return decision;
  }

  decision.ranks = RanksWhere(owners, in_phase(OwnerPhase::kApplying));
  if (!decision.ranks.empty()) {
    decision.transition = StepTransition::kInterrupted;
    for (const Rank rank : decision.ranks) {
      decision.step = std::max(decision.step, owners[rank]->finished + 1);
    }
    return decision;
  }

  const Rank ahead = *std::max_element(known.begin(), known.end(), [&](Rank a, Rank b) {
    return owners[a]->applied() < owners[b]->applied();
  });
  decision.step = owners[ahead]->applied();
  decision.ranks = RanksWhere(owners, [&](const Owner& owner) {
    return is_known(owner) && owner->applied() < decision.step;
  });
  if (!decision.ranks.empty()) {
    decision.transition = StepTransition::kBehind;
    decision.ahead = ahead;
    return decision;
  }
  if (!unknown.empty()) {
    decision.ranks = RanksWhere(owners, in_phase(OwnerPhase::kPrepared));
    if (decision.ranks.empty()) {
      decision.transition = StepTransition::kNotKnown;
      decision.ranks = unknown;
    } else {
      decision.transition = StepTransition::kInDoubt;
      ++decision.step;
    }
    return decision;
  }
  decision.transition = StepTransition::kGoOn;
  for (const Owner& owner : owners) decision.skipped = std::max(decision.skipped, owner->skipped);
  return decision;
}

}  // namespace optshard
