#include "server/coordinator/member.h"

#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"
#include "common/step_transition.h"
#include "server/coordinator/recovery_point.h"

namespace optshard {

std::vector<Rank> MissingRanks(absl::Span<const Member> members) {
  std::vector<Rank> missing;
  for (size_t rank = 0; rank < members.size(); ++rank) {
    if (members[rank].state == MemberState::kMissing) missing.push_back(static_cast<Rank>(rank));
  }
  return missing;
}

absl::StatusOr<OwnerPage> OwnersFrom(Rank first, absl::Span<const Member> members,
                                     Generation generation) {
  if (first < 0 || first >= static_cast<Rank>(members.size())) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the owners from rank ", first, " on are asked for, expected 0..", members.size() - 1));
  }
  OwnerPage page;
  page.generation = generation;
  page.world_size = static_cast<int>(members.size());
  for (const Member& member : members.subspan(first, kMostOwners)) {
    page.addresses.push_back(member.request.owner_address);
  }
  return page;
}

MemberStatus StatusOf(const Member& member, Rank rank, absl::Time now) {
  MemberStatus status;
  status.rank = rank;
  status.state = member.state;
  status.incarnation = member.incarnation;
  if (member.state == MemberState::kMissing) return status;
  status.node = member.request.node;
  status.owner_address = member.request.owner_address;
  status.pid = member.request.pid;
  status.silent_for = now - member.pulse.last_heard;
  status.progress = member.progress;
  return status;
}

bool IsTorn(absl::Span<const Member> members) {
  std::vector<absl::optional<OwnerSteps>> owners;
  for (const Member& member : members) {
    owners.emplace_back(StepsOf(member.progress, member.progress_is_final));
  }
  return IsTorn(DecideTransition(owners).transition);
}

}  // namespace optshard
