#include "server/coordinator/failure_attribution.h"

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "common/errors.h"

namespace optshard {
namespace {

bool IsPresent(const Evidence& each) {
  return each.state == MemberState::kJoined || each.state == MemberState::kActive;
}

// That the operation failed for a reason of the reporter's own, not because a peer was cut off.
bool IsOwnError(const Suspicion& suspicion) {
  if (suspicion.suspect != -1) return false;
  switch (suspicion.observed.code()) {
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kCancelled:
    case absl::StatusCode::kAborted:
      return false;
    default:
      return true;
  }
}

absl::Status Blame(const Suspicion& suspicion) {
  const std::string reported = absl::StrCat("reported by rank ", suspicion.reporter);
  if (suspicion.suspect == -1) return errors::WithContext(suspicion.observed, reported);
  if (errors::IsPeersTimedOut(suspicion.observed)) {
    return errors::WithContext(
        suspicion.observed,
        absl::StrCat(reported, ", while rank ", suspicion.suspect, "'s process is alive"));
  }
  return errors::PeerLost(
      suspicion.suspect,
      absl::StrCat("the connection between rank ", suspicion.reporter, " and rank ",
                   suspicion.suspect, " is broken although both processes are alive; rank ",
                   suspicion.reporter, " saw: ", suspicion.observed.message()));
}

}  // namespace

absl::optional<absl::Status> AttributeFailure(absl::Span<const Suspicion> suspicions,
                                              absl::Span<const Evidence> evidence,
                                              absl::Duration grace, absl::Time now) {
  if (suspicions.empty()) return absl::nullopt;
  const absl::Time raised = suspicions.front().when;

  bool broken = false;
  bool all_heard = true;
  for (const Evidence& each : evidence) {
    if (!IsPresent(each)) continue;
    broken |= each.pulse.broken_session.has_value();
    all_heard &= each.pulse.last_heard > raised ||
                 absl::c_any_of(suspicions, [&](const Suspicion& suspicion) {
                   return suspicion.reporter == each.rank;
                 });
  }
  // Whoever's session is broken is dead, or back, within its own grace.
  if (broken) return absl::nullopt;

  for (const Suspicion& suspicion : suspicions) {
    for (const Evidence& each : evidence) {
      if (each.rank == suspicion.suspect && each.state == MemberState::kLeft) {
        return errors::PeerLost(
            each.rank, absl::StrCat("it left the job after step ", each.finished, ", rank ",
                                    suspicion.reporter, " still needs it"));
      }
    }
  }
  if (!all_heard || now - raised < grace) return absl::nullopt;

  for (const Suspicion& suspicion : suspicions) {
    if (IsOwnError(suspicion)) return Blame(suspicion);
  }
  for (const Suspicion& suspicion : suspicions) {
    const bool suspect_reported = absl::c_any_of(
        suspicions, [&](const Suspicion& other) { return other.reporter == suspicion.suspect; });
    if (suspicion.suspect != -1 && !suspect_reported) return Blame(suspicion);
  }
  for (const Suspicion& suspicion : suspicions) {
    if (suspicion.suspect != -1) return Blame(suspicion);
  }
  return Blame(suspicions.front());
}

}  // namespace optshard
