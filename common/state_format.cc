#include "common/state_format.h"

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace optshard {
namespace {

constexpr StateFormat kChoices[] = {StateFormat::kFloat32, StateFormat::kBFloat16,
                                    StateFormat::kInt8Dynamic, StateFormat::kInt8Companded};

}  // namespace

bool IsKnown(StateFormat format) { return !NameOf(format).empty(); }

bool IsCoded(StateFormat format) {
  return format == StateFormat::kInt8Dynamic || format == StateFormat::kInt8Companded;
}

DType DTypeOf(StateFormat format) {
  switch (format) {
    case StateFormat::kFloat64:
      return DType::kFloat64;
    case StateFormat::kFloat16:
      return DType::kFloat16;
    case StateFormat::kBFloat16:
      return DType::kBFloat16;
    default:
      return DType::kFloat32;
  }
}

StateFormat StateFormatOf(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return StateFormat::kFloat32;
    case DType::kFloat64:
      return StateFormat::kFloat64;
    case DType::kFloat16:
      return StateFormat::kFloat16;
    case DType::kBFloat16:
      return StateFormat::kBFloat16;
  }
  return StateFormat::kFloat32;
}

absl::string_view NameOf(StateFormat format) {
  switch (format) {
    case StateFormat::kFloat32:
      return "float32";
    case StateFormat::kFloat64:
      return "float64";
    case StateFormat::kFloat16:
      return "float16";
    case StateFormat::kBFloat16:
      return "bfloat16";
    case StateFormat::kInt8Dynamic:
      return "int8_dynamic";
    case StateFormat::kInt8Companded:
      return "int8_companded";
    case StateFormat::kInt8:
      return "int8";
  }
  return "";
}

absl::StatusOr<StateFormat> ParseStateFormat(absl::string_view name) {
  std::string expected;
  for (const StateFormat format : kChoices) {
    if (name == NameOf(format)) return format;
    absl::StrAppend(&expected, expected.empty() ? "" : ", ", "\"", NameOf(format), "\"");
  }
  return absl::InvalidArgumentError(
      absl::StrCat("state_dtype is \"", name, "\", expected one of ", expected));
}

}  // namespace optshard
