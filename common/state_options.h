// How an optimizer keeps its state: the types of its slots, and float32 masters.
#ifndef OPTSHARD_COMMON_STATE_OPTIONS_H_
#define OPTSHARD_COMMON_STATE_OPTIONS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/dtype.h"
#include "common/parameter_space.h"

namespace optshard {

// A slot beside the rule's own: the parameter in float32.
constexpr char kMasterSlot[] = "master";

// Thread-compatible value type.
struct StateOptions {
  // Of each bfloat16 and float16 parameter the owner keeps the value in float32, updates that, and
  // rounds it to the parameter: small steps add up that the parameter's own bits would swallow.
  bool master_weights = false;
  // Of the rule's slots: float32, or bfloat16 for half the memory. Those of a float64 parameter
  // are float64 in any case.
  DType dtype = DType::kFloat32;

  // Of a parameter of that dtype.
  DType SlotDType(DType parameter) const;
  bool HasMaster(DType parameter) const;
  int64_t BytesPerElement(DType parameter, int64_t slots) const;  // of all slots and the master

  // INVALID_ARGUMENT naming the option, its value and the way out: another dtype than those above,
  // masters where no parameter could have one.
  absl::Status Validate(const ParameterSpace& space) const;
};

// INVALID_ARGUMENT, listing the known names, for any other text than "float32" and "bfloat16".
absl::StatusOr<DType> ParseStateDType(absl::string_view name);

}  // namespace optshard

#endif  // OPTSHARD_COMMON_STATE_OPTIONS_H_
