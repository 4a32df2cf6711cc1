#include "server/coordinator/inspection/late_ranks.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace optshard {
namespace {

constexpr size_t kShownRanks = 8;

// Larger for a rank that is farther.
uint64_t Position(const StepProgress& progress) {
  return 2 * LastCall(progress) + (progress.outcome == StepOutcome::kInStep ? 1 : 0);
}

}  // namespace

std::vector<Rank> RanksBehind(const StepProgress& waiting, absl::Duration since,
                              absl::Span<const RankProgress> others) {
  std::vector<Rank> behind;
  if (waiting.outcome != StepOutcome::kInStep) return behind;
  for (const RankProgress& other : others) {
    if (other.age <= since && Position(other.progress) < Position(waiting)) {
      behind.push_back(other.rank);
    }
  }
  return behind;
}

std::string RanksText(absl::Span<const Rank> ranks) {
  const size_t shown = std::min(ranks.size(), kShownRanks);
  std::string text =
      absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ", absl::StrJoin(ranks.first(shown), ", "));
  if (ranks.size() > shown) absl::StrAppend(&text, " and ", ranks.size() - shown, " more");
  return text;
}

}  // namespace optshard
