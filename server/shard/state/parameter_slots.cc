#include "server/shard/state/parameter_slots.h"

#include <cmath>
#include <utility>

#include "server/shard/state/shard_store.h"
#include "server/update/update_rule.h"

namespace optshard {

std::vector<ParameterSlot> SlotsOfParameter(const ParameterSpec& parameter,
                                            const GroupUpdate& group, const StateOptions& state) {
  std::vector<ParameterSlot> slots;
  const StateFormat format = state.SlotFormat(parameter.dtype, parameter.elements());
  int index = -1;
  for (const Slot& slot : group.rule->Slots(group.hyperparameters)) {
    ++index;
    absl::optional<std::vector<int64_t>> shape = slot.ShapeFor(parameter.shape);
    if (!shape.has_value()) continue;
    if (*shape == parameter.shape) shape.reset();
    slots.push_back({slot.name, format, SlotKind::kElements, index, std::move(shape)});
  }
  if (state.HasMaster(parameter.dtype)) {
    slots.push_back({kMasterSlot, StateFormat::kFloat32, SlotKind::kElements, ShardStore::kMaster,
                     absl::nullopt});
  }
  if (state.HasCorrection(parameter.dtype)) {
    slots.push_back({kCorrectionSlot, StateFormat::kInt8, SlotKind::kCorrections,
                     ShardStore::kCorrection, absl::nullopt});
  }
  const std::vector<int64_t> one_number;
  const std::vector<ScalarSlotSpec>& scalars = group.rule->spec().scalar_slots;
  for (size_t k = 0; k < scalars.size(); ++k) {
    slots.push_back({scalars[k].name, StateFormat::kFloat64, SlotKind::kScalar, static_cast<int>(k),
                     one_number});
  }
  slots.push_back({kStepSlot, StateFormat::kFloat32, SlotKind::kStep, 0, one_number});
  return slots;
}

bool IsStepCount(double value) {
  constexpr double kLargest = 9007199254740992.0;  // integers up to here are exact
  return value >= 0 && value <= kLargest && value == std::floor(value);
}

}  // namespace optshard
