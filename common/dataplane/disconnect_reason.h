// Why a rank leaves a data plane: the last thing it tells the others. With it they name the rank
// that is really lost, and not the one whose connection happens to break next.
#ifndef OPTSHARD_COMMON_DATAPLANE_DISCONNECT_REASON_H_
#define OPTSHARD_COMMON_DATAPLANE_DISCONNECT_REASON_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/ids.h"

namespace optshard {

struct DisconnectReason {
  // Values are stable: they travel between the ranks.
  enum Kind : uint32_t {
    kNone = 0,  // the rank has not left, or had no time to say why
    // It closed the plane in the regular way: of its own accord where `about` is -1, else because
    // it waited for rank `about`, which had closed before.
    kClosed = 1,
    kPeerLost = 2,      // it gave up because rank `about` is lost
    kPeerTimedOut = 3,  // it gave up because rank `about` did not come in time
    kOther = 4,         // it gave up for a reason of its own
  };
  Kind kind = kNone;
  Rank about = -1;

  // In one word, which can be read and written atomically. Zero is kNone.
  uint64_t Encode() const;
  static DisconnectReason Decode(uint64_t encoded);

  // Of a rank whose plane broke because of `failure`.
  static DisconnectReason Of(const absl::Status& failure);

  bool closed_of_own_accord() const { return kind == kClosed && about == -1; }
};

// The error on rank `self` when `peer` has left with this reason. `observed` says how `self`
// noticed; it is part of the message. PeerLost or PeersTimedOut. A peer that says `self` is
// lost is lost itself. Where it waited for `self` in vain, `self` is who came too late: it says so
// to others, which then do not take that peer for lost. Of kClosed, HasClosed holds.
absl::Status PeerDisconnected(Rank self, Rank peer, const DisconnectReason& reason,
                              absl::string_view observed);

// Whether the rank that the error names has not crashed: it closed the plane in the regular way,
// and what was waited for will not come. It is lost only to those that still need it.
bool HasClosed(const absl::Status& failure);

}  // namespace optshard

#endif  // OPTSHARD_COMMON_DATAPLANE_DISCONNECT_REASON_H_
