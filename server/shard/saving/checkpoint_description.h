// What a checkpoint of an optimizer has: its manifest before any owner has written.
#ifndef OPTSHARD_SERVER_SHARD_SAVING_CHECKPOINT_DESCRIPTION_H_
#define OPTSHARD_SERVER_SHARD_SAVING_CHECKPOINT_DESCRIPTION_H_

#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/generation_shape.h"
#include "common/group_rule.h"
#include "common/ids.h"
#include "common/parameter_space.h"
#include "common/state_options.h"
#include "server/checkpoint/checkpoint_manifest.h"
#include "server/update/group_update.h"

namespace optshard {

// A parameter of a param group with its arrays: "parameter" first, then the slots that have a value
// for each element or a shape of their own. Thread-safe.
CheckpointParameter DescribeParameter(const ParameterSpec& from, int group,
                                      const GroupUpdate& update, const StateOptions& state);

// Every parameter, as above. The step counts, numbers of a whole parameter and files are the
// owners' to say, and step, time and labels the caller's. `rules` are those of the groups with
// their present hyperparameters. UNIMPLEMENTED where an optimizer class steps a group, naming it,
// unless only a model is saved, which has the parameters alone. Thread-safe.
absl::StatusOr<CheckpointManifest> DescribeCheckpoint(const MemberId& member,
                                                      const GenerationShape& shape,
                                                      absl::Span<const GroupUpdate> groups,
                                                      std::vector<GroupRule> rules, bool is_model);

}  // namespace optshard

#endif  // OPTSHARD_SERVER_SHARD_SAVING_CHECKPOINT_DESCRIPTION_H_
