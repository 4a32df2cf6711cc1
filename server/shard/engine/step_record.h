// What the drivers of a step read besides gradients, parameters and slots.
#ifndef OPTSHARD_SERVER_SHARD_ENGINE_STEP_RECORD_H_
#define OPTSHARD_SERVER_SHARD_ENGINE_STEP_RECORD_H_

#include <vector>

#include "common/hyperparameters.h"
#include "common/ids.h"
#include "server/shard/engine/touched_rows.h"
#include "server/update/update_rule.h"

namespace optshard {

// Filled in by Prepare and completed by the commit. Equal on all ranks, except that a rank has
// coefficients only for parameters it owns. Thread-compatible.
struct StepRecord {
  StepNumber step = 0;
  Generation generation = 0;
  std::vector<Hyperparameters> hyperparameters;  // by group, validated
  std::vector<std::vector<bool>> has_gradient;   // by rank, by parameter
  // What of each bucket is updated; the engine's.
  const TouchedRows* rows = nullptr;
  std::vector<bool> updated;  // by parameter: it has a gradient on some rank
  // By parameter, for owned ones that are updated.
  std::vector<Coefficients> coefficients;
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_SHARD_ENGINE_STEP_RECORD_H_
