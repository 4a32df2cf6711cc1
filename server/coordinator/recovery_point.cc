#include "server/coordinator/recovery_point.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/errors.h"

namespace optshard {
namespace {

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

absl::Status CheckAllBring(absl::Span<const absl::optional<KeptState>> kept) {
  std::vector<Rank> with;
  std::vector<Rank> without;
  for (size_t rank = 0; rank < kept.size(); ++rank) {
    (kept[rank].has_value() ? with : without).push_back(static_cast<Rank>(rank));
  }
  if (with.empty() || without.empty()) return absl::OkStatus();
  return errors::RanksDisagree(
      without, absl::StrCat(Bring(with), " the state of step ",
                            AppliedStep(kept[with.front()]->progress), ", ", Bring(without),
                            " none; start all ranks anew, or all from one checkpoint"));
}

absl::Status CheckNoneTorn(absl::Span<const absl::optional<KeptState>> kept) {
  std::vector<Rank> torn;
  StepNumber step = 0;
  for (size_t rank = 0; rank < kept.size(); ++rank) {
    const StepProgress& progress = kept[rank]->progress;
    if (progress.outcome != StepOutcome::kTorn) continue;
    torn.push_back(static_cast<Rank>(rank));
    step = std::max(step, progress.finished + 1);
  }
  if (torn.empty()) return absl::OkStatus();
  return Torn(
      step, torn,
      absl::StrCat(Bring(torn), " the state of a life that ended while it applied the step"));
}

}  // namespace

absl::StatusOr<StepProgress> FindRecoveryPoint(absl::Span<const absl::optional<KeptState>> kept) {
  absl::Status usable = CheckAllBring(kept);
  if (!usable.ok()) return usable;
  if (kept.empty() || !kept[0].has_value()) return StepProgress();
  usable = CheckNoneTorn(kept);
  if (!usable.ok()) return usable;

  Rank ahead = 0;
  for (size_t rank = 0; rank < kept.size(); ++rank) {
    if (AppliedStep(kept[rank]->progress) > AppliedStep(kept[ahead]->progress)) {
      ahead = static_cast<Rank>(rank);
    }
  }
  const StepNumber step = AppliedStep(kept[ahead]->progress);
  std::vector<Rank> behind;
  for (size_t rank = 0; rank < kept.size(); ++rank) {
    if (AppliedStep(kept[rank]->progress) != step) behind.push_back(static_cast<Rank>(rank));
  }
  if (behind.empty()) {
    StepProgress all = {step, StepOutcome::kIdle};
    for (const absl::optional<KeptState>& each : kept) {
      all.skipped = std::max(all.skipped, each->progress.skipped);
    }
    return all;
  }
  return Torn(step, behind,
              absl::StrFormat("rank %d has applied it, %s the state of step %d", ahead,
                              Bring(behind), AppliedStep(kept[behind.front()]->progress)));
}

}  // namespace optshard
