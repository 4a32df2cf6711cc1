#include "server/coordinator/losses.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/errors.h"

namespace optshard {

absl::optional<absl::Status> MarkLost(absl::Span<Member> members, absl::string_view optimizer,
                                      const LivenessOptions& options, absl::Time now) {
  struct Loss {
    Rank rank;
    Death death;
  };
  std::vector<Loss> losses;
  for (size_t rank = 0; rank < members.size(); ++rank) {
    Member& member = members[rank];
    if (!member.present()) continue;
    absl::optional<Death> death = FindDeath(member.pulse, options, now);
    if (!death.has_value()) continue;
    member.state = MemberState::kLost;
    losses.push_back({static_cast<Rank>(rank), *std::move(death)});
  }
  if (losses.empty()) return absl::nullopt;
  absl::c_stable_sort(losses,
                      [](const Loss& a, const Loss& b) { return a.death.when < b.death.when; });
  const Loss& first = losses.front();
  const JoinRequest& request = members[first.rank].request;
  std::string how = absl::StrCat(first.death.how_known, " (pid ", request.pid,
                                 request.node.empty() ? "" : absl::StrCat(" on ", request.node),
                                 ", optimizer \"", optimizer, "\")");
  if (losses.size() > 1) {
    absl::StrAppend(
        &how, "; lost after it: rank ",
        absl::StrJoin(losses.begin() + 1, losses.end(), ", ",
                      [](std::string* out, const Loss& loss) { absl::StrAppend(out, loss.rank); }));
  }
  return errors::PeerLost(first.rank, how);
}

absl::Status MarkReplaced(Member& member, Rank rank, int64_t successor_pid) {
  member.state = MemberState::kLost;
  const std::string how =
      member.request.pid == successor_pid ? "it joins again" : "its shard server was started again";
  return errors::PeerLost(
      rank, absl::StrCat(how, " (pid ", member.request.pid, ", now pid ", successor_pid, ")"));
}

std::vector<Evidence> EvidenceOf(absl::Span<const Member> members) {
  std::vector<Evidence> evidence;
  evidence.reserve(members.size());
  for (size_t rank = 0; rank < members.size(); ++rank) {
    const Member& member = members[rank];
    evidence.push_back(
        {static_cast<Rank>(rank), member.state, member.progress.finished, member.pulse});
  }
  return evidence;
}

absl::optional<absl::Status> FindAbandoned(absl::Span<const Member> members) {
  const Member* ahead = nullptr;  // in the latest call
  for (const Member& member : members) {
    if (!member.present() || member.progress.outcome != StepOutcome::kInStep) continue;
    if (ahead == nullptr || LastCall(member.progress) > LastCall(ahead->progress)) ahead = &member;
  }
  if (ahead == nullptr) return absl::nullopt;
  for (size_t left = 0; left < members.size(); ++left) {
    const Member& gone = members[left];
    // Of calls, not of steps: its last call may have been skipped, as will be that of the others.
    const bool does_what_it_did = LastCall(ahead->progress) < LastCall(gone.progress);
    if (gone.state != MemberState::kLeft || does_what_it_did) continue;
    return errors::PeerLost(
        static_cast<Rank>(left),
        absl::StrCat("it left the job after step ", gone.progress.finished, ", rank ",
                     ahead - members.data(), " is in step ", ahead->progress.finished + 1));
  }
  return absl::nullopt;
}

}  // namespace optshard
