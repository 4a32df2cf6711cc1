// How the arrays of a checkpoint hold their values: parameters and slots of any type, bit for bit
// as they are kept.
#ifndef OPTSHARD_SERVER_CHECKPOINT_ARRAY_FORMAT_H_
#define OPTSHARD_SERVER_CHECKPOINT_ARRAY_FORMAT_H_

#include <cstdint>

#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "common/block_code.h"
#include "common/dtype.h"
#include "server/checkpoint/safetensors.h"

namespace optshard {

enum class ArrayFormat : uint8_t {
  kFloat32,
  kFloat64,
  kFloat16,
  kBFloat16,
  kInt8,  // what a 16-bit parameter lacks to its master
  // Codes with a scale a block (common/block_code.h).
  kDynamicSigned,
  kDynamicUnsigned,
  kCompandedAverage,
  kCompandedSquare,
};

absl::string_view NameOf(ArrayFormat format);  // "float32", ..., "int8_dynamic_signed", ...
absl::optional<ArrayFormat> ArrayFormatNamed(absl::string_view name);

ArrayFormat ArrayFormatOf(DType dtype);
ArrayFormat ArrayFormatOf(BlockCode code);
absl::optional<BlockCode> BlockCodeOf(ArrayFormat format);  // none of one that is not coded
inline bool IsCoded(ArrayFormat format) { return BlockCodeOf(format).has_value(); }

// A coded array is two tensors, every other is one.
enum class ArrayPart : uint8_t {
  kValues,  // or the codes
  kScales,
};

TensorType TypeOf(ArrayFormat format, ArrayPart part);

// How many elements of a part go with so many elements of the array, from the beginning of a block
// on.
int64_t PartElements(ArrayFormat format, ArrayPart part, int64_t elements);
int64_t PartBytes(ArrayFormat format, ArrayPart part, int64_t elements);

// Where an array may be cut: a coded one at multiples of kCodeGrid, every other anywhere.
int64_t CutGrid(ArrayFormat format);

}  // namespace optshard

#endif  // OPTSHARD_SERVER_CHECKPOINT_ARRAY_FORMAT_H_
