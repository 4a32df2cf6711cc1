// What goes into a step of a shard owner and what comes out.
#ifndef OPTSHARD_SERVER_SHARD_STEP_H_
#define OPTSHARD_SERVER_SHARD_STEP_H_

#include <cstdint>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/dataplane/peer_replicas.h"
#include "common/ids.h"
#include "server/update/hyperparameters.h"

namespace optshard {

enum class GradientMode : uint8_t {
  // The trainer's gradients are averaged over the ranks already (DDP). A gradient that some ranks
  // have and others miss is an error naming parameter and ranks.
  kAveraged = 1,
  // The service averages them on the way to the owner. Missing on some ranks counts as zero there;
  // missing on all, the parameter is skipped.
  kReduce = 2,
};
absl::string_view NameOf(GradientMode mode);  // "averaged", "reduce"

// One parameter of this rank's replica, in host memory, contiguous, float32.
struct ReplicaTensor {
  float* parameter = nullptr;       // null only for a zero-size parameter
  const float* gradient = nullptr;  // null: none this step
};

struct StepInput {
  absl::Span<const ReplicaTensor> replica;  // by parameter index
  // By region, or empty: memory whose padding, too, may be sent from and received into. Without it
  // only the tensors' own elements are touched, and buckets with padding are copied through
  // staging.
  absl::Span<const ReplicaRegion> regions;
  absl::Span<const Hyperparameters> hyperparameters;  // by group; validated by the step
  absl::Duration timeout;                             // of the whole step
};

struct StepInfo {
  StepNumber step = 0;
  // No parameter had a gradient on any rank: nothing changed, and `step` is the last finished one.
  bool skipped = false;
  absl::Duration prepare;  // gradients complete at their owners
  absl::Duration commit;   // all ranks agreed
  absl::Duration apply;    // updated and published
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_SHARD_STEP_H_
