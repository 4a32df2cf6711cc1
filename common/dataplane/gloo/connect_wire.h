// Connects a GlooWire to all other ranks, which have connections for short messages already.
#ifndef OPTSHARD_COMMON_DATAPLANE_GLOO_CONNECT_WIRE_H_
#define OPTSHARD_COMMON_DATAPLANE_GLOO_CONNECT_WIRE_H_

#include <cstdint>

#include "absl/status/status.h"
#include "common/dataplane/gloo/gloo_plane_options.h"
#include "common/dataplane/gloo/gloo_wire.h"
#include "common/dataplane/gloo/small_messages.h"

namespace optshard {

// What a rank tells each other one: where it has opened a Gloo socket for it. A short message.
struct WireAddress {
  // Of the message. No operation has it, since none has all bits of the phase set.
  static constexpr uint64_t kSlot = ~uint64_t{2};

  uint32_t bytes = 0;
  char address[508] = {};  // in Gloo's encoding
};

// Every rank opens a socket for each other one, tells it where, and connects to those that it is
// told. The addresses go to the peer itself and not through the coordinator, which would have to
// keep as many as there are pairs of ranks. Returns by the deadline of the options, for which it
// cuts the wire where it must; after an error the messages are cut, too.
//   UNAVAILABLE           PeerLost: a rank is gone again
//   DEADLINE_EXCEEDED     PeersTimedOut: ranks that did not come
//   INTERNAL              an address that this version does not understand
// and what the wire's Listen and LookAtGroup return.
absl::Status ConnectWire(GlooWire& wire, SmallMessages& messages, const GlooPlaneOptions& options);

}  // namespace optshard

#endif  // OPTSHARD_COMMON_DATAPLANE_GLOO_CONNECT_WIRE_H_
