// Connects a GlooWire to all other ranks.
#ifndef OPTSHARD_COMMON_DATAPLANE_GLOO_CONNECT_WIRE_H_
#define OPTSHARD_COMMON_DATAPLANE_GLOO_CONNECT_WIRE_H_

#include "absl/status/status.h"
#include "common/dataplane/gloo/gloo_plane_options.h"
#include "common/dataplane/gloo/gloo_wire.h"

namespace optshard {

// Every rank opens a socket for each other one, says where through the rendezvous, and connects.
// Returns by the deadline of the options, for which it cuts the wire where it must.
//   UNAVAILABLE           PeerLost: a rank is gone again
//   DEADLINE_EXCEEDED     PeersTimedOut: ranks that did not come
// and what the wire's Listen and the rendezvous return.
absl::Status ConnectWire(GlooWire& wire, const GlooPlaneOptions& options);

}  // namespace optshard

#endif  // OPTSHARD_COMMON_DATAPLANE_GLOO_CONNECT_WIRE_H_
