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
    case StepTransition::kGoOn:
      return "go on";
  }
  return "unknown";
}

StepDecision DecideTransition(absl::Span<const absl::optional<OwnerSteps>> owners) {
  using Owner = absl::optional<OwnerSteps>;
  StepDecision decision;
  const std::vector<Rank> with =
      RanksWhere(owners, [](const Owner& owner) { return owner.has_value(); });
  if (with.empty()) return decision;
  if (with.size() < owners.size()) {
    decision.transition = StepTransition::kStateMissing;
    decision.step = owners[with.front()]->applied();
    decision.ranks = RanksWhere(owners, [](const Owner& owner) { return !owner.has_value(); });
    return decision;
  }

  decision.ranks =
      RanksWhere(owners, [](const Owner& owner) { return owner->phase == OwnerPhase::kApplying; });
  if (!decision.ranks.empty()) {
    decision.transition = StepTransition::kInterrupted;
    for (const Rank rank : decision.ranks) {
      decision.step = std::max(decision.step, owners[rank]->finished + 1);
    }
    return decision;
  }

  const auto ahead =
      std::max_element(owners.begin(), owners.end(),
                       [](const Owner& a, const Owner& b) { return a->applied() < b->applied(); });
  decision.step = (*ahead)->applied();
  decision.ranks =
      RanksWhere(owners, [&](const Owner& owner) { return owner->applied() < decision.step; });
  if (!decision.ranks.empty()) {
    decision.transition = StepTransition::kBehind;
    decision.ahead = static_cast<Rank>(ahead - owners.begin());
    return decision;
  }
  decision.transition = StepTransition::kGoOn;
  for (const Owner& owner : owners) decision.skipped = std::max(decision.skipped, owner->skipped);
  return decision;
}

}  // namespace optshard
