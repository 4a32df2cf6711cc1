// The doorbell of a trainer, as it follows from what the trainer optimizes.
#ifndef OPTSHARD_SERVER_NODE_DOORBELL_SHAPE_H_
#define OPTSHARD_SERVER_NODE_DOORBELL_SHAPE_H_

#include "common/attach/doorbell.h"
#include "common/optimizer_spec.h"
#include "server/update/gradient_support.h"

namespace optshard {

// Both ends call it with the same spec. Thread-safe.
inline DoorbellShape DoorbellShapeOf(const OptimizerSpec& spec) {
  return {spec.space.parameter_count(), spec.space.group_count(), RowsThatMayBeSparse(spec)};
}

}  // namespace optshard

#endif  // OPTSHARD_SERVER_NODE_DOORBELL_SHAPE_H_
