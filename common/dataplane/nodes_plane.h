// One plane between all ranks of a job and one between those of a node, joined.
#ifndef OPTSHARD_COMMON_DATAPLANE_NODES_PLANE_H_
#define OPTSHARD_COMMON_DATAPLANE_NODES_PLANE_H_

#include <memory>
#include <vector>

#include "common/dataplane/data_plane.h"
#include "common/ids.h"

namespace optshard {

// Operations are those of `all`; DataPlane::node has `node` and `ranks`, its ranks in ascending
// order. Abort and Close are for both, so whoever fails in one of them, and says so by Abort, ends
// the waits in both.
std::unique_ptr<DataPlane> JoinPlanes(std::unique_ptr<DataPlane> all,
                                      std::unique_ptr<DataPlane> node, std::vector<Rank> ranks);

}  // namespace optshard

#endif  // OPTSHARD_COMMON_DATAPLANE_NODES_PLANE_H_
