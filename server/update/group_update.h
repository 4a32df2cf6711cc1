// How each param group of an optimizer is updated.
#ifndef OPTSHARD_SERVER_UPDATE_GROUP_UPDATE_H_
#define OPTSHARD_SERVER_UPDATE_GROUP_UPDATE_H_

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/hyperparameters.h"
#include "common/optimizer_spec.h"
#include "server/update/trainer_update.h"
#include "server/update/update_rule.h"

namespace optshard {

// Thread-compatible value type.
struct GroupUpdate {
  const UpdateRule* rule = nullptr;         // the registry's, or that of `trainer_update`
  Hyperparameters hyperparameters;          // all of the rule's, validated
  TrainerUpdate* trainer_update = nullptr;  // null: the rule updates the group
};

// By param group; the same ones for all that step them.
using GroupUpdates = std::shared_ptr<const std::vector<GroupUpdate>>;

// By param group, from OptimizerSpec::rules, and from `trainer_updates` where that is not empty and
// has no null for the group. INVALID_ARGUMENT with the number of the group: an unknown rule, the
// first error of UpdateRule::Validate, a rule that needs whole parameters where the partition
// policy cuts them, a rule that does not work with the format of the state, an update of the
// trainer's own with masters or such a format, a parameter of a type or a shape that the rule does
// not take (named). FAILED_PRECONDITION where a library that a rule needs is missing. Thread-safe.
absl::StatusOr<std::vector<GroupUpdate>> ValidateGroups(
    const OptimizerSpec& spec,
    absl::Span<const std::shared_ptr<TrainerUpdate>> trainer_updates = {});

// By group.
std::vector<Hyperparameters> HyperparametersOf(absl::Span<const GroupUpdate> groups);
std::vector<std::vector<Slot>> SlotsOf(absl::Span<const GroupUpdate> groups);

}  // namespace optshard

#endif  // OPTSHARD_SERVER_UPDATE_GROUP_UPDATE_H_
