// The options of the Gloo plane.
#ifndef OPTSHARD_COMMON_DATAPLANE_GLOO_GLOO_PLANE_OPTIONS_H_
#define OPTSHARD_COMMON_DATAPLANE_GLOO_GLOO_PLANE_OPTIONS_H_

#include <cstddef>
#include <string>

#include "common/dataplane/plane_request.h"

namespace optshard {

struct GlooPlaneOptions : PlaneRequest {
  // A network interface by name, or a numeric address of one. All ranks use one address family.
  std::string network = "lo";

  // How much memory an owner uses to receive contributions. Those of one bucket are always
  // received.
  size_t reduce_window_bytes = size_t{64} << 20;
};

}  // namespace optshard

#endif  // OPTSHARD_COMMON_DATAPLANE_GLOO_GLOO_PLANE_OPTIONS_H_
