#include "server/shard/state/shard_state.h"

#include <cstddef>

#include "server/shard/state/slot_memory.h"
#include "server/update/update_rule.h"

namespace optshard {

std::vector<ShardState::Slot> ShardState::Slots(int parameter) const {
  const GroupUpdate& group = (*options_.groups)[options_.space->group_of(parameter)];
  const ParameterSpec& spec = options_.space->parameter(parameter);
  std::vector<Slot> slots;
  for (const optshard::Slot& slot : group.rule->Slots(group.hyperparameters)) {
    slots.push_back({slot.name, SlotTypeOf(options_.state, spec, slot).dtype, SlotKind::kElements,
                     static_cast<int>(slots.size())});
  }
  if (options_.state.HasMaster(spec.dtype)) {
    slots.push_back({kMasterSlot, DType::kFloat32, SlotKind::kElements, ShardStore::kMaster});
  }
  if (options_.state.HasCorrection(spec.dtype)) {
    slots.push_back(
        {kCorrectionSlot, DType::kFloat32, SlotKind::kCorrections, ShardStore::kCorrection});
  }
  const std::vector<ScalarSlotSpec>& scalars = group.rule->spec().scalar_slots;
  for (size_t k = 0; k < scalars.size(); ++k) {
    slots.push_back({scalars[k].name, DType::kFloat64, SlotKind::kScalar, static_cast<int>(k)});
  }
  slots.push_back({kStepSlot, DType::kFloat32, SlotKind::kStep, 0});
  return slots;
}

void ShardState::Read(int parameter, const Slot& slot, int64_t offset_elements,
                      absl::Span<double> out) const {
  switch (slot.kind) {
    case SlotKind::kElements:
    case SlotKind::kCorrections:
      // Nobody writes meanwhile, so that the first try succeeds.
      options_.store->TryRead(parameter, slot.index, offset_elements, out);
      return;
    case SlotKind::kScalar:
      out[0] = options_.store->scalar_slots(parameter)[slot.index];
      return;
    case SlotKind::kStep:
      out[0] = static_cast<double>(options_.store->step_count(parameter));
      return;
  }
}

void ShardState::Write(int parameter, const Slot& slot, int64_t offset_elements,
                       absl::Span<const double> values) {
  if (!slot.is_scalar()) {
    options_.store->Write(parameter, slot.index, offset_elements, values);
    return;
  }
  StepNumber count = options_.store->step_count(parameter);
  ScalarSlots scalars = options_.store->scalar_slots(parameter);
  if (slot.kind == SlotKind::kStep) {
    count = static_cast<StepNumber>(values[0]);
  } else {
    scalars[slot.index] = values[0];
  }
  options_.store->WriteCount(parameter, count, scalars);
}

}  // namespace optshard
