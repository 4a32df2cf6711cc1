// How an optimizer keeps its state: the types of its slots, and float32 masters of parameters that
// hold less.
#ifndef OPTSHARD_COMMON_STATE_OPTIONS_H_
#define OPTSHARD_COMMON_STATE_OPTIONS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/dtype.h"
#include "common/parameter_space.h"
#include "common/state_format.h"

namespace optshard {

// Slots beside the rule's own. The parameter in float32:
constexpr char kMasterSlot[] = "master";
// In its place where masters have 24 bits: common/parameter_correction.h.
constexpr char kCorrectionSlot[] = "master_correction";
// How often the parameter was updated.
constexpr char kStepSlot[] = "step";

// Of the types in which replicas may hold float32 parameters. INVALID_ARGUMENT, listing them, for
// other text.
absl::StatusOr<DType> ParsePublishDType(absl::string_view name);

// Thread-compatible value type.
struct StateOptions {
  // Of each bfloat16 and float16 parameter the owner keeps the value in float32, updates that, and
  // rounds it to the parameter: small steps add up that the parameter's own bits would swallow.
  bool master_weights = false;
  // How many bits masters have: 32, kept beside the parameter in float32; or 24, the parameter's 16
  // and a correction of 8, kept instead.
  int master_weight_bits = 32;
  // To which type the values of a float32 parameter are rounded before the replicas get them, that
  // of the owner included; float32: they are not. Where they are, the owner keeps the value itself
  // as a master, of 32 bits whatever the fields above say.
  DType publish_dtype = DType::kFloat32;
  // Of the rule's slots. Those of a float64 parameter are float64 in any case, and in 8 bits those
  // of a parameter with fewer elements than kElementsWorthCoding are float32.
  StateFormat format = StateFormat::kFloat32;

  static constexpr int64_t kElementsWorthCoding = 4096;

  // Of a parameter with so many elements in all, whatever part of it is kept here.
  StateFormat SlotFormat(DType parameter, int64_t elements) const;
  bool HasMaster(DType parameter) const;      // in float32
  bool HasCorrection(DType parameter) const;  // instead
  bool MayHaveMasters() const;                // of one kind or the other
  // The type whose values the parameter's replicas hold after a step.
  DType PublishedAs(DType parameter) const;

  // INVALID_ARGUMENT naming the option, its value and the way out: a format that is not to be
  // chosen (ParseStateFormat), masters where no parameter could have one, or of other bits, a
  // publish_dtype that is float64, or where no parameter is float32.
  absl::Status Validate(const ParameterSpace& space) const;
};

}  // namespace optshard

#endif  // OPTSHARD_COMMON_STATE_OPTIONS_H_
