#include "server/shard/engine/commit_decision.h"

#include <algorithm>
#include <cstddef>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/errors.h"
#include "common/row_marks.h"

namespace optshard {
namespace {

// "rank 1" or "ranks 1, 2".
std::string RankList(const std::vector<Rank>& ranks) {
  return absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ", absl::StrJoin(ranks, ", "));
}

absl::string_view TextOf(CommitCall call, size_t ranks) {
  switch (call) {
    case CommitCall::kStep:
      return ranks == 1 ? "steps" : "step";
    case CommitCall::kSynchronise:
      return ranks == 1 ? "synchronises the parameters" : "synchronise the parameters";
    case CommitCall::kVerify:
      return ranks == 1 ? "verifies the replicas" : "verify the replicas";
    case CommitCall::kConsolidate:
      return ranks == 1 ? "consolidates the optimizer state" : "consolidate the optimizer state";
    case CommitCall::kLoad:
      return ranks == 1 ? "loads optimizer state" : "load optimizer state";
    case CommitCall::kFinishLoading:
      return ranks == 1 ? "goes on from a checkpoint" : "go on from a checkpoint";
    case CommitCall::kReplaceState:
      return ranks == 1 ? "takes loaded state" : "take loaded state";
  }
  return "makes a call that this version does not know";
}

absl::Status CheckIdentities(absl::Span<const CommitVote> votes, const CommitVote& expected,
                             absl::Span<const Incarnation> incarnations) {
  for (size_t r = 0; r < votes.size(); ++r) {
    const CommitVote& vote = votes[r];
    const Rank rank = static_cast<Rank>(r);
    if (vote.rank != rank) {
      return absl::InternalError(
          absl::StrFormat("the vote of rank %d came in the place of rank %d", vote.rank, rank));
    }
    if (vote.generation != expected.generation) {
      return errors::WithContext(errors::StaleGeneration(vote.generation, expected.generation),
                                 absl::StrCat("rank ", rank));
    }
    if (incarnations[r] != 0 && vote.incarnation != incarnations[r]) {
      return errors::StaleIncarnation(rank, vote.incarnation, incarnations[r]);
    }
  }
  // Compared with rank 0's, so that all ranks say the same.
  std::vector<Rank> elsewhere;
  for (const CommitVote& vote : votes) {
    if (vote.step != votes[0].step) elsewhere.push_back(vote.rank);
  }
  if (elsewhere.empty()) return absl::OkStatus();
  return errors::RanksDisagree(
      elsewhere, absl::StrFormat("rank 0 takes step %d, %s takes step %d", votes[0].step,
                                 RankList({elsewhere[0]}), votes[elsewhere[0]].step));
}

absl::Status CheckPrepared(absl::Span<const CommitVote> votes) {
  std::vector<std::string> reasons;
  std::vector<Rank> gone;
  absl::StatusCode code = absl::StatusCode::kOk;
  for (const CommitVote& vote : votes) {
    if (vote.prepared.ok()) continue;
    if (absl::IsUnavailable(vote.prepared)) {
      gone.push_back(vote.rank);
    } else if (code == absl::StatusCode::kOk || absl::IsDataLoss(vote.prepared)) {
      code = vote.prepared.code();  // torn state comes first: nothing helps before that is mended
    }
    reasons.push_back(absl::StrCat("rank ", vote.rank, ": ", vote.prepared.message()));
  }
  if (reasons.empty()) return absl::OkStatus();
  if (gone.size() == reasons.size()) {
    return errors::TrainerGone(
        gone, absl::StrFormat("step %d was given up by all ranks (%s); it may be tried again",
                              votes[0].step, absl::StrJoin(reasons, "; ")));
  }
  const std::string refused =
      absl::StrFormat("step %d was given up by all ranks, since it could not be prepared: %s",
                      votes[0].step, absl::StrJoin(reasons, "; "));
  if (code == absl::StatusCode::kDataLoss) return errors::TornStep(votes[0].step, refused);
  return absl::Status(code, refused);
}

absl::Status CheckHyperparameters(absl::Span<const CommitVote> votes) {
  const size_t groups = votes[0].hyperparameter_digests.size();
  for (size_t g = 0; g < groups; ++g) {
    std::vector<Rank> differing;
    for (const CommitVote& vote : votes) {
      if (vote.hyperparameter_digests[g] != votes[0].hyperparameter_digests[g]) {
        differing.push_back(vote.rank);
      }
    }
    if (differing.empty()) continue;
    return errors::RanksDisagree(
        differing, absl::StrFormat("step %d: the hyperparameters of group %d are others on %s than "
                                   "on rank 0; set them alike on all ranks before step()",
                                   votes[0].step, g, RankList(differing)));
  }
  return absl::OkStatus();
}

absl::Status CheckGradients(absl::Span<const CommitVote> votes, const ParameterSpace& space) {
  for (int p = 0; p < space.parameter_count(); ++p) {
    std::vector<Rank> have;
    std::vector<Rank> miss;
    for (const CommitVote& vote : votes) (vote.has_gradient[p] ? have : miss).push_back(vote.rank);
    if (have.empty() || miss.empty()) continue;
    return errors::RanksDisagree(
        miss, absl::StrFormat(
                  "step %d: parameter %d \"%s\" has a gradient on %s but none on %s; averaged "
                  "gradients must exist on all ranks or on none (gradient mode \"reduce\" "
                  "counts a missing one as zero)",
                  votes[0].step, p, space.parameter(p).name, RankList(have), RankList(miss)));
  }
  return absl::OkStatus();
}

bool IsSparse(const CommitVote& vote, int parameter) {
  return !vote.sparse.empty() && vote.sparse[parameter];
}

absl::Status CheckLayouts(absl::Span<const CommitVote> votes, const ParameterSpace& space) {
  for (int p = 0; p < space.parameter_count(); ++p) {
    std::vector<Rank> sparse;
    std::vector<Rank> dense;
    for (const CommitVote& vote : votes) {
      if (vote.has_gradient[p]) (IsSparse(vote, p) ? sparse : dense).push_back(vote.rank);
    }
    if (!sparse.empty() && RowsOf(space.parameter(p)) == 0) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "step %d: the gradient of parameter %d \"%s\" is sparse on %s, and the parameter has no "
          "rows: expected two dimensions or more, and elements",
          votes[0].step, p, space.parameter(p).name, RankList(sparse)));
    }
    if (sparse.empty() || dense.empty()) continue;
    return errors::RanksDisagree(
        dense, absl::StrFormat("step %d: the gradient of parameter %d \"%s\" is sparse on %s but "
                               "dense on %s; make it alike on all ranks",
                               votes[0].step, p, space.parameter(p).name, RankList(sparse),
                               RankList(dense)));
  }
  return absl::OkStatus();
}

// Loads a checkpoint or a state dict, at whose ends there are calls of their own.
bool Loads(const CommitVote& vote) {
  return vote.call == CommitCall::kLoad || vote.call == CommitCall::kFinishLoading ||
         vote.call == CommitCall::kReplaceState;
}

// Ranks make the same call, and some have begun it again.
absl::Status Apart(absl::Span<const CommitVote> votes, const std::vector<Rank>& elsewhere) {
  return absl::AbortedError(
      absl::StrCat("all ranks ", TextOf(votes[0].call, 2), ", but ", RankList(elsewhere),
                   elsewhere.size() == 1 ? " is" : " are",
                   " at another point of the call than rank 0; repeat the call on all ranks"));
}

// Of one call.
absl::Status CheckSubjects(absl::Span<const CommitVote> votes) {
  std::vector<Rank> differing;
  for (const CommitVote& vote : votes) {
    if (vote.subject != votes[0].subject) differing.push_back(vote.rank);
  }
  if (differing.empty()) return absl::OkStatus();
  if (votes[0].call != CommitCall::kFinishLoading) return Apart(votes, differing);
  return errors::RanksDisagree(
      differing, absl::StrCat("all ranks ", TextOf(votes[0].call, 2),
                              ", but rank 0 goes on after "
                              "step ",
                              votes[0].subject, ", ", RankList({differing[0]}), " after step ",
                              votes[differing[0]].subject));
}

absl::Status CheckCalls(absl::Span<const CommitVote> votes) {
  std::map<CommitCall, std::vector<Rank>> others;
  std::vector<Rank> differing;
  for (const CommitVote& vote : votes) {
    if (vote.call == votes[0].call) continue;
    others[vote.call].push_back(vote.rank);
    differing.push_back(vote.rank);
  }
  if (differing.empty()) return CheckSubjects(votes);
  if (std::all_of(votes.begin(), votes.end(), Loads)) return Apart(votes, differing);
  std::vector<std::string> texts = {absl::StrCat("rank 0 ", TextOf(votes[0].call, 1))};
  for (const auto& [call, ranks] : others) {
    texts.push_back(absl::StrCat(RankList(ranks), " ", TextOf(call, ranks.size())));
  }
  return errors::RanksDisagree(differing, absl::StrJoin(texts, ", while "));
}

}  // namespace

CommitDecision DecideCall(absl::Span<const CommitVote> votes, const CommitVote& expected,
                          absl::Span<const Incarnation> incarnations) {
  CommitDecision decision;
  decision.status = CheckIdentities(votes, expected, incarnations);
  decision.is_final = !decision.status.ok();
  if (decision.status.ok()) decision.status = CheckPrepared(votes);
  if (!decision.status.ok()) return decision;
  decision.status = CheckCalls(votes);
  return decision;
}

CommitDecision Decide(absl::Span<const CommitVote> votes, const CommitVote& expected,
                      absl::Span<const Incarnation> incarnations, GradientMode mode,
                      const ParameterSpace& space) {
  CommitDecision decision = DecideCall(votes, expected, incarnations);
  if (!decision.status.ok()) return decision;
  decision.status = CheckHyperparameters(votes);
  if (!decision.status.ok()) {
    decision.hyperparameters_differ = true;
    return decision;
  }
  if (mode == GradientMode::kAveraged) decision.status = CheckGradients(votes, space);
  if (decision.status.ok()) decision.status = CheckLayouts(votes, space);
  if (!decision.status.ok()) return decision;

  decision.updated.resize(space.parameter_count());
  decision.sparse.resize(space.parameter_count());
  for (const CommitVote& vote : votes) {
    for (int p = 0; p < space.parameter_count(); ++p) {
      if (!vote.has_gradient[p]) continue;
      decision.updated[p] = true;
      if (IsSparse(vote, p)) decision.sparse[p] = true;
    }
  }
  decision.skipped =
      std::find(decision.updated.begin(), decision.updated.end(), true) == decision.updated.end();
  return decision;
}

absl::Status DecideTrainerUpdates(absl::Span<const CommitVote> votes) {
  std::vector<Rank> failed;
  std::vector<std::string> reasons;
  for (const CommitVote& vote : votes) {
    if (vote.prepared.ok()) continue;
    failed.push_back(vote.rank);
    reasons.push_back(absl::StrCat("rank ", vote.rank, ": ", vote.prepared.message()));
  }
  if (failed.empty()) return absl::OkStatus();
  return errors::TornState(votes[0].step, failed, absl::StrJoin(reasons, "; "));
}

std::string HyperparameterText(absl::Span<const Hyperparameters> groups) {
  std::string text;
  for (size_t g = 0; g < groups.size(); ++g) {
    for (const auto& [name, value] : groups[g].values()) {
      absl::StrAppend(&text, "group ", g, ": ", name, " is ", ToString(value), "\n");
    }
  }
  return text;
}

std::string DescribeDifference(absl::Span<const std::string> texts) {
  const std::vector<absl::string_view> first = absl::StrSplit(texts[0], '\n');
  for (size_t r = 1; r < texts.size(); ++r) {
    if (texts[r] == texts[0]) continue;
    const std::vector<absl::string_view> other = absl::StrSplit(texts[r], '\n');
    for (size_t line = 0; line < std::min(first.size(), other.size()); ++line) {
      if (first[line] == other[line]) continue;
      // "group 1: lr is 0.01" and "group 1: lr is 0.02": the value is what follows the last " is ".
      const size_t value = other[line].rfind(" is ");
      return absl::StrCat(
          first[line], " on rank 0 but ",
          value == absl::string_view::npos ? other[line] : other[line].substr(value + 4),
          " on rank ", r);
    }
  }
  return "";
}

}  // namespace optshard
