// Whether a checkpoint is one of this optimizer, and where in it the optimizer's parameters are.
#ifndef OPTSHARD_CLIENT_OWNER_CHECKPOINT_MATCH_H_
#define OPTSHARD_CLIENT_OWNER_CHECKPOINT_MATCH_H_

#include <vector>

#include "absl/status/statusor.h"
#include "client/owner/state_layout.h"
#include "common/hyperparameters.h"
#include "server/checkpoint/checkpoint_manifest.h"

namespace optshard {

// Of one of the optimizer's parameters.
struct MatchedParameter {
  int saved = 0;            // its index in the manifest
  int values = 0;           // its array "parameter" there
  std::vector<int> arrays;  // by StateLayout::Slots; -1 of one that is a number
};

struct CheckpointMatch {
  std::vector<MatchedParameter> parameters;
  std::vector<Hyperparameters> hyperparameters;  // by group, all of the rule's
};

// Parameters are found by their names, in whatever order they were saved, within groups of the same
// rules. INVALID_ARGUMENT, with the first difference, both sides of it, how many parameters fit all
// the same, and the names of the first: other groups, rules, parameters, shapes, types or slots, or
// options that need other slots. Rules step all groups of `layout`. Pure.
absl::StatusOr<CheckpointMatch> MatchCheckpoint(const CheckpointManifest& saved,
                                                const StateLayout& layout);

}  // namespace optshard

#endif  // OPTSHARD_CLIENT_OWNER_CHECKPOINT_MATCH_H_
