#include "server/shard/state/parameter_slots.h"

#include "server/shard/state/shard_store.h"
#include "server/update/update_rule.h"

namespace optshard {

std::vector<ParameterSlot> SlotsOfParameter(const ParameterSpec& parameter,
                                            const GroupUpdate& group, const StateOptions& state) {
  std::vector<ParameterSlot> slots;
  const StateFormat format = state.SlotFormat(parameter.dtype, parameter.elements());
  for (const Slot& slot : group.rule->Slots(group.hyperparameters)) {
    slots.push_back({slot.name, format, SlotKind::kElements, static_cast<int>(slots.size())});
  }
  if (state.HasMaster(parameter.dtype)) {
    slots.push_back({kMasterSlot, StateFormat::kFloat32, SlotKind::kElements, ShardStore::kMaster});
  }
  if (state.HasCorrection(parameter.dtype)) {
    slots.push_back(
        {kCorrectionSlot, StateFormat::kInt8, SlotKind::kCorrections, ShardStore::kCorrection});
  }
  const std::vector<ScalarSlotSpec>& scalars = group.rule->spec().scalar_slots;
  for (size_t k = 0; k < scalars.size(); ++k) {
    slots.push_back(
        {scalars[k].name, StateFormat::kFloat64, SlotKind::kScalar, static_cast<int>(k)});
  }
  slots.push_back({kStepSlot, StateFormat::kFloat32, SlotKind::kStep, 0});
  return slots;
}

}  // namespace optshard
