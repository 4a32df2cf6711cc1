#include "common/dtype.h"

#include <algorithm>
#include <iterator>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/fatal.h"

namespace optshard {
namespace {

constexpr DType kAll[] = {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16};

}  // namespace

bool IsKnown(DType dtype) {
  return std::find(std::begin(kAll), std::end(kAll), dtype) != std::end(kAll);
}

size_t SizeOf(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return 4;
    case DType::kFloat64:
      return 8;
    case DType::kFloat16:
    case DType::kBFloat16:
      return 2;
  }
  Fatal("%d is no DType", static_cast<int>(dtype));
}

DType ArithmeticOf(DType dtype) {
  return dtype == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
}

absl::string_view NameOf(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return "float32";
    case DType::kFloat64:
      return "float64";
    case DType::kFloat16:
      return "float16";
    case DType::kBFloat16:
      return "bfloat16";
  }
  Fatal("%d is no DType", static_cast<int>(dtype));
}

absl::StatusOr<DType> ParseDType(absl::string_view name) {
  for (DType dtype : kAll) {
    if (NameOf(dtype) == name) return dtype;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "unknown dtype \"", name, "\"; known are ",
      absl::StrJoin(kAll, ", ",
                    [](std::string* out, DType dtype) { absl::StrAppend(out, NameOf(dtype)); })));
}

}  // namespace optshard
