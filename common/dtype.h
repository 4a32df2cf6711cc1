// Element types of parameters and slots.
#ifndef OPTSHARD_COMMON_DTYPE_H_
#define OPTSHARD_COMMON_DTYPE_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace optshard {

// Values are stable: they are part of digests and of messages.
enum class DType : uint8_t { kFloat32 = 1, kFloat64 = 2, kFloat16 = 3, kBFloat16 = 4 };

// Of the C++ types that are one.
template <typename T>
inline constexpr DType kDTypeOf{};
template <>
inline constexpr DType kDTypeOf<float> = DType::kFloat32;
template <>
inline constexpr DType kDTypeOf<double> = DType::kFloat64;

// False for a number that came from outside and is none of the above. The functions below want a
// known one; ParameterSpace::Validate refuses others.
bool IsKnown(DType dtype);

size_t SizeOf(DType dtype);  // bytes of one element

// What sums and updates of such elements are computed in: float64 of float64, float32 of all
// others.
DType ArithmeticOf(DType dtype);

absl::string_view NameOf(DType dtype);  // PyTorch's: "float32", "float64", "float16", "bfloat16"

// INVALID_ARGUMENT, listing the known names, for any other text.
absl::StatusOr<DType> ParseDType(absl::string_view name);

}  // namespace optshard

#endif  // OPTSHARD_COMMON_DTYPE_H_
