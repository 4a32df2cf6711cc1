#include "server/shard/saving/checkpoint_description.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "common/optimizer_spec.h"
#include "server/shard/state/parameter_slots.h"
#include "server/shard/state/slot_memory.h"

namespace optshard {
namespace {

CheckpointArray ArrayOf(const StateOptions& state, const ParameterSpec& parameter,
                        const std::vector<Slot>& rule_slots, const ParameterSlot& slot) {
  CheckpointArray array;
  array.name = slot.name;
  array.shape = slot.shape;
  if (slot.kind == SlotKind::kCorrections) {
    array.format = ArrayFormat::kInt8;
  } else if (slot.index < 0) {  // a master
    array.format = ArrayFormatOf(slot.dtype());
  } else {
    const SlotType type = SlotTypeOf(state, parameter, rule_slots[slot.index]);
    array.format = type.code.has_value() ? ArrayFormatOf(*type.code) : ArrayFormatOf(type.dtype);
  }
  return array;
}

}  // namespace

CheckpointParameter DescribeParameter(const ParameterSpec& from, int group,
                                      const GroupUpdate& update, const StateOptions& state) {
  const std::vector<Slot> rule_slots = update.rule->Slots(update.hyperparameters);
  CheckpointParameter parameter;
  parameter.name = from.name;
  parameter.shape = from.shape;
  parameter.dtype = from.dtype;
  parameter.group = group;
  parameter.arrays.push_back({kParameterArray, ArrayFormatOf(from.dtype), absl::nullopt});
  for (const ParameterSlot& slot : SlotsOfParameter(from, update, state)) {
    if (slot.is_scalar()) continue;
    parameter.arrays.push_back(ArrayOf(state, from, rule_slots, slot));
  }
  return parameter;
}

absl::StatusOr<CheckpointManifest> DescribeCheckpoint(const MemberId& member,
                                                      const GenerationShape& shape,
                                                      absl::Span<const GroupUpdate> groups,
                                                      std::vector<GroupRule> rules, bool is_model) {
  const OptimizerSpec& spec = shape.spec();
  for (size_t g = 0; g < groups.size(); ++g) {
    if (is_model || groups[g].trainer_update == nullptr) continue;
    return absl::UnimplementedError(absl::StrFormat(
        "param group %d of optimizer \"%s\" is stepped by an optimizer class, whose state no "
        "checkpoint has: save it with local_optimizer()",
        g, member.optimizer));
  }
  CheckpointManifest description;
  description.job = member.job;
  description.optimizer = member.optimizer;
  description.generation = shape.generation();
  description.world_size = shape.plan().world_size;
  description.policy = shape.plan().policy;
  description.groups = std::move(rules);
  for (int p = 0; p < spec.space.parameter_count(); ++p) {
    const int group = spec.space.group_of(p);
    description.parameters.push_back(
        DescribeParameter(spec.space.parameter(p), group, groups[group], spec.state));
  }
  return description;
}

}  // namespace optshard
