// The replicas of all ranks of a host, where a plane gives direct access to their memory.
#ifndef OPTSHARD_COMMON_DATAPLANE_PEER_REPLICAS_H_
#define OPTSHARD_COMMON_DATAPLANE_PEER_REPLICAS_H_

#include <memory>
#include <vector>

#include "common/buffer.h"

namespace optshard {

class ReplicaSegments;

// Flat memory that holds a whole region of the MemoryLayout, padding included.
struct ReplicaRegion {
  Buffer parameters;  // none: the parameters lie elsewhere
  Buffer gradients;   // none: the gradients lie elsewhere
};

// The replicas of all ranks, this one included, in this process's address space. Where ranks share
// one copy of the parameters, their regions have the same address.
struct PeerReplicas {
  // By rank, then by region of the layout. None of a rank whose memory is not reached.
  std::vector<std::vector<ReplicaRegion>> regions;
  // By rank: keep all of it mapped, also beyond the plane's life. Empty where nothing does.
  std::vector<std::shared_ptr<const ReplicaSegments>> segments;
};

}  // namespace optshard

#endif  // OPTSHARD_COMMON_DATAPLANE_PEER_REPLICAS_H_
