#include "client/replica/scalar_type.h"

#include <iterator>

#include "common/fatal.h"

namespace optshard {
namespace {

constexpr struct {
  c10::ScalarType type;
  DType dtype;
} kTypes[] = {{c10::ScalarType::Float, DType::kFloat32},
              {c10::ScalarType::Double, DType::kFloat64},
              {c10::ScalarType::Half, DType::kFloat16},
              {c10::ScalarType::BFloat16, DType::kBFloat16}};

}  // namespace

absl::optional<DType> DTypeOf(c10::ScalarType type) {
  for (const auto& row : kTypes) {
    if (row.type == type) return row.dtype;
  }
  return absl::nullopt;
}

c10::ScalarType ScalarTypeOf(DType dtype) {
  for (const auto& row : kTypes) {
    if (row.dtype == dtype) return row.type;
  }
  Fatal("%d is no DType", static_cast<int>(dtype));
}

}  // namespace optshard
