// What a trainer brings to a step of its shard owner.
#ifndef OPTSHARD_SERVER_SHARD_ENGINE_STEP_INPUT_H_
#define OPTSHARD_SERVER_SHARD_ENGINE_STEP_INPUT_H_

#include <cstdint>
#include <functional>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/buffer.h"
#include "common/dataplane/peer_replicas.h"
#include "common/hyperparameters.h"
#include "common/ids.h"
#include "common/row_marks.h"

namespace optshard {

// The rows that a sparse gradient has.
struct GradientRows {
  const uint64_t* marks = nullptr;  // common/row_marks.h; null: all, the gradient is dense
  int64_t row_elements = 0;

  // Whether it has the row of this element.
  bool Has(int64_t element) const {
    return marks == nullptr || HasRow(marks, element / row_elements);
  }
};

// One parameter of this rank's replica, where the engine's memory is, contiguous, of the
// parameter's dtype and of its gradient's where it has elements.
struct ReplicaTensor {
  Buffer parameter;      // none only of a zero-size parameter
  ConstBuffer gradient;  // none: there is none this step
  // Of a gradient. Sparse ones are for rules that leave the other rows as they are
  // (UpdateRule::ChangesOtherRows), of which nothing is read in `gradient`.
  GradientRows gradient_rows = {};
};

struct StepInput {
  absl::Span<const ReplicaTensor> replica;  // by parameter index
  // By region, or empty: memory whose padding, too, may be sent from and received into. Without it
  // only the tensors' own elements are touched, and buckets with padding are copied through
  // staging.
  absl::Span<const ReplicaRegion> regions;
  absl::Span<const Hyperparameters> hyperparameters;  // by group; validated by the step
  absl::Duration timeout;                             // of the whole step
  // Of a replica on a device: on which gradients are ready behind what is there now, and behind
  // which parameters and gradients are read and written later. Null: the device's default one.
  void* stream = nullptr;
  // Called where all ranks skip the step, with the last finished one, before a snapshot is opened
  // that follows the call: what the trainer gave with the step belongs there.
  std::function<void(StepNumber finished)> on_skip = {};
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_SHARD_ENGINE_STEP_INPUT_H_
