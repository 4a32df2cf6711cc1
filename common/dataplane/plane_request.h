// What every data plane is made from, once the plan is known.
#ifndef OPTSHARD_COMMON_DATAPLANE_PLANE_REQUEST_H_
#define OPTSHARD_COMMON_DATAPLANE_PLANE_REQUEST_H_

#include "absl/time/time.h"
#include "common/dataplane/peer_replicas.h"
#include "common/dataplane/rendezvous.h"
#include "common/ids.h"
#include "common/memory_layout.h"
#include "common/plan.h"

namespace optshard {

// The options of each plane begin with it. It is passed on whole, never field by field. What it
// points to is not owned, and is used only while the plane is made.
struct PlaneRequest {
  Rank rank = 0;
  int world_size = 1;
  Generation generation = 0;
  ReductionTree tree;
  Rendezvous* rendezvous = nullptr;
  const MemoryLayout* layout = nullptr;  // where parameters lie in replicas, if there are any
  // Of the plane that this one follows, in the same process: what is mapped already is not mapped
  // again. Null: nothing is.
  const PeerReplicas* before = nullptr;
  absl::Time deadline = absl::InfiniteFuture();  // of making the plane; Clock::Monotonic()
};

}  // namespace optshard

#endif  // OPTSHARD_COMMON_DATAPLANE_PLANE_REQUEST_H_
