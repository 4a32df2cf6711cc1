// How the values of a slot are kept.
#ifndef OPTSHARD_COMMON_STATE_FORMAT_H_
#define OPTSHARD_COMMON_STATE_FORMAT_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/dtype.h"

namespace optshard {

// Values are stable: they are part of messages. The last two are codes of 8 bits with a scale a
// block; common/block_code.h has their definition.
enum class StateFormat : uint8_t {
  kFloat32 = 1,
  kFloat64 = 2,
  kBFloat16 = 4,
  kInt8Dynamic = 5,
  kInt8Companded = 6,
};

// False for a number that came from outside and is none of the above. The functions below want a
// known one.
bool IsKnown(StateFormat format);

bool IsCoded(StateFormat format);  // in 8 bits

// Of the array; of a coded one, what its values are.
DType DTypeOf(StateFormat format);

absl::string_view NameOf(StateFormat format);  // "float32", ..., "int8_dynamic", "int8_companded"

// What an optimizer may ask for: all but float64. INVALID_ARGUMENT, listing them, for other text.
absl::StatusOr<StateFormat> ParseStateFormat(absl::string_view name);

}  // namespace optshard

#endif  // OPTSHARD_COMMON_STATE_FORMAT_H_
