// Checks where the tensors of a replica lie in memory. The functions are thread-safe.
#ifndef OPTSHARD_SERVER_SHARD_ENGINE_REPLICA_PLACEMENT_H_
#define OPTSHARD_SERVER_SHARD_ENGINE_REPLICA_PLACEMENT_H_

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/dataplane/peer_replicas.h"
#include "common/memory_layout.h"
#include "common/parameter_space.h"
#include "server/shard/engine/step_input.h"

namespace optshard {

// Whether the replica has one tensor for each parameter, and memory of its type for each parameter
// that has elements. INVALID_ARGUMENT with both counts, or naming the first parameter without
// memory or with memory or a gradient of another type.
absl::Status CheckTensors(const ParameterSpace& space, absl::Span<const ReplicaTensor> replica);

// Whether every parameter and every gradient that is given lies in `regions` where `layout` places
// it. `layout` is that of `space`; `regions` has an entry for each of its regions, with memory for
// parameters and gradients.
// INVALID_ARGUMENT with both counts where the replica has not one tensor for each parameter;
// otherwise naming the first misplaced tensor, with its address and the expected one.
absl::Status CheckPlacement(const ParameterSpace& space, const MemoryLayout& layout,
                            absl::Span<const ReplicaRegion> regions,
                            absl::Span<const ReplicaTensor> replica);

}  // namespace optshard

#endif  // OPTSHARD_SERVER_SHARD_ENGINE_REPLICA_PLACEMENT_H_
