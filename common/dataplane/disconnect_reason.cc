#include "common/dataplane/disconnect_reason.h"

#include <vector>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "common/errors.h"

namespace optshard {
namespace {

// Beside that of common/errors.h: to all that do not ask for it, the rank is lost.
constexpr char kHasClosedUrl[] = "optshard.has_closed";

absl::Status Closed(Rank rank, absl::string_view observed) {
  absl::Status status =
      errors::PeerLost(rank, absl::StrCat(observed, ": it has closed the data plane"));
  status.SetPayload(kHasClosedUrl, absl::Cord());
  return status;
}

}  // namespace

uint64_t DisconnectReason::Encode() const {
  if (kind == kNone) return 0;
  return static_cast<uint64_t>(kind) << 32 | static_cast<uint32_t>(about);
}

DisconnectReason DisconnectReason::Decode(uint64_t encoded) {
  if (encoded == 0) return DisconnectReason();
  return {static_cast<Kind>(encoded >> 32), static_cast<Rank>(encoded & 0xffffffff)};
}

DisconnectReason DisconnectReason::Of(const absl::Status& failure) {
  const std::vector<Rank> ranks = errors::RanksOf(failure);
  if (ranks.empty()) return {kOther, -1};
  if (HasClosed(failure)) return {kClosed, ranks.front()};
  return {errors::IsPeersTimedOut(failure) ? kPeerTimedOut : kPeerLost, ranks.front()};
}

absl::Status PeerDisconnected(Rank self, Rank peer, const DisconnectReason& reason,
                              absl::string_view observed) {
  switch (reason.kind) {
    case DisconnectReason::kPeerLost:
      if (reason.about == self) break;
      return errors::PeerLost(reason.about,
                              absl::StrCat(observed, ": rank ", peer, " reports that it is lost"));
    case DisconnectReason::kPeerTimedOut:
      return errors::PeersTimedOut(
          {reason.about}, absl::StrCat(observed, reason.about == peer
                                                     ? ": it came too late for another rank"
                                                     : absl::StrCat(": rank ", peer,
                                                                    " waited for it and gave up")));
    case DisconnectReason::kClosed:
      // Who closed first is who is missing.
      return Closed(reason.about == -1 || reason.about == self ? peer : reason.about, observed);
    case DisconnectReason::kNone:
      return errors::PeerLost(peer, observed);
    case DisconnectReason::kOther:
      break;
  }
  return errors::PeerLost(peer, absl::StrCat(observed, ": it has given up the data plane"));
}

bool HasClosed(const absl::Status& failure) {
  return failure.GetPayload(kHasClosedUrl).has_value();
}

}  // namespace optshard
