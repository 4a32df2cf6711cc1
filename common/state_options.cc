#include "common/state_options.h"

#include "absl/strings/str_cat.h"

namespace optshard {

DType StateOptions::SlotDType(DType parameter) const {
  return parameter == DType::kFloat64 ? DType::kFloat64 : dtype;
}

bool StateOptions::HasMaster(DType parameter) const {
  return master_weights && SizeOf(parameter) < SizeOf(DType::kFloat32);
}

int64_t StateOptions::BytesPerElement(DType parameter, int64_t slots) const {
  const auto of_slots = slots * static_cast<int64_t>(SizeOf(SlotDType(parameter)));
  return of_slots + (HasMaster(parameter) ? static_cast<int64_t>(SizeOf(DType::kFloat32)) : 0);
}

absl::StatusOr<DType> ParseStateDType(absl::string_view name) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    if (name == NameOf(dtype)) return dtype;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("state_dtype is \"", name, "\", expected \"float32\" or \"bfloat16\""));
}

absl::Status StateOptions::Validate(const ParameterSpace& space) const {
  if (dtype != DType::kFloat32 && dtype != DType::kBFloat16) {
    return ParseStateDType(IsKnown(dtype) ? NameOf(dtype) : "(unknown)").status();
  }
  if (!master_weights) return absl::OkStatus();
  for (int p = 0; p < space.parameter_count(); ++p) {
    if (HasMaster(space.parameter(p).dtype)) return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      "master_weights is true, but no parameter is bfloat16 or float16, and only those have "
      "masters: leave it false");
}

}  // namespace optshard
