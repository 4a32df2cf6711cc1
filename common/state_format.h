// How the values of a slot are kept.
#ifndef OPTSHARD_COMMON_STATE_FORMAT_H_
#define OPTSHARD_COMMON_STATE_FORMAT_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/dtype.h"

namespace optshard {

// Values are stable: they are part of messages. kInt8Dynamic and kInt8Companded are codes of 8 bits
// with a scale a block (common/block_code.h), kInt8 the whole numbers of corrections
// (common/parameter_correction.h). Only parameters are of float16, no slot is.
enum class StateFormat : uint8_t {
  kFloat32 = 1,
  kFloat64 = 2,
  kFloat16 = 3,
  kBFloat16 = 4,
  kInt8Dynamic = 5,
  kInt8Companded = 6,
  kInt8 = 7,
};

// False for a number that came from outside and is none of the above. The functions below want a
// known one.
bool IsKnown(StateFormat format);

bool IsCoded(StateFormat format);  // in blocks of codes

// Of the array; of one of 8 bits, what its values are given out as.
DType DTypeOf(StateFormat format);

// How parameters of the type are kept.
StateFormat StateFormatOf(DType dtype);

absl::string_view NameOf(
    StateFormat format);  // "float32", ..., "int8_dynamic", "int8_companded", "int8"

// What an optimizer may ask for: all but float64, float16 and int8. INVALID_ARGUMENT, listing them,
// for other text.
absl::StatusOr<StateFormat> ParseStateFormat(absl::string_view name);

}  // namespace optshard

#endif  // OPTSHARD_COMMON_STATE_FORMAT_H_
