#include "server/shard/state/shard_state.h"

namespace optshard {

std::vector<ParameterSlot> ShardState::Slots(int parameter) const {
  return SlotsOfParameter(options_.space->parameter(parameter),
                          (*options_.groups)[options_.space->group_of(parameter)], options_.state);
}

void ShardState::Read(int parameter, const ParameterSlot& slot, int64_t offset_elements,
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

void ShardState::Write(int parameter, const ParameterSlot& slot, int64_t offset_elements,
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
