// The options of the Gloo plane.
#ifndef OPTSHARD_COMMON_DATAPLANE_GLOO_GLOO_PLANE_OPTIONS_H_
#define OPTSHARD_COMMON_DATAPLANE_GLOO_GLOO_PLANE_OPTIONS_H_

#include <cstddef>
#include <string>

#include "absl/time/time.h"
#include "common/dataplane/rendezvous.h"
#include "common/ids.h"
#include "common/plan.h"

namespace optshard {

struct GlooPlaneOptions {
  Rank rank = 0;
  int world_size = 1;
  ReductionTree tree;
  Generation generation = 0;
  Rendezvous* rendezvous = nullptr;  // used by CreateGlooPlane only; not owned

  // A network interface by name, or a numeric address of one. All ranks use one address family.
  std::string network = "lo";

  // By when CreateGlooPlane has to be done, in the time of Clock::Monotonic().
  absl::Time deadline = absl::InfiniteFuture();

  // How much memory an owner uses to receive contributions. Those of one bucket are always
  // received.
  size_t reduce_window_bytes = size_t{64} << 20;
};

}  // namespace optshard

#endif  // OPTSHARD_COMMON_DATAPLANE_GLOO_GLOO_PLANE_OPTIONS_H_
