// Which slots there are of a parameter, by the names under which they are read and replaced.
#ifndef OPTSHARD_SERVER_SHARD_STATE_PARAMETER_SLOTS_H_
#define OPTSHARD_SERVER_SHARD_STATE_PARAMETER_SLOTS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/optional.h"
#include "common/dtype.h"
#include "common/parameter_space.h"
#include "common/state_format.h"
#include "common/state_options.h"
#include "server/update/group_update.h"

namespace optshard {

enum class SlotKind : uint8_t {
  kElements,     // a value for each element, or as many as its own shape says
  kCorrections,  // likewise, in int8: what a 16-bit parameter lacks to its master
  kScalar,       // one for the whole parameter
  kStep,         // likewise: how often the parameter was updated
};

// Thread-compatible value type.
struct ParameterSlot {
  std::string name;
  StateFormat format = StateFormat::kFloat32;  // in which it is kept
  SlotKind kind = SlotKind::kElements;
  int index = 0;  // among those of its kind, as the store has them
  // Its shape, where that is not the parameter's: [] of one number. It is then owned as a whole by
  // each rank that owns some of the parameter.
  absl::optional<std::vector<int64_t>> shape;

  DType dtype() const { return DTypeOf(format); }  // of the values that are given out
  bool is_scalar() const { return kind == SlotKind::kScalar || kind == SlotKind::kStep; }
};

// By PyTorch's names: the rule's slots, "master" or "master_correction" where there is one, those
// that are one number, and always "step" as the last one, also of a rule of which PyTorch keeps no
// such slot.
std::vector<ParameterSlot> SlotsOfParameter(const ParameterSpec& parameter,
                                            const GroupUpdate& group, const StateOptions& state);

// Whether a parameter can have been updated so often: 0, 1, 2, ..., as far as double counts.
bool IsStepCount(double value);

}  // namespace optshard

#endif  // OPTSHARD_SERVER_SHARD_STATE_PARAMETER_SLOTS_H_
