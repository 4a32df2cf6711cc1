#include "common/state_options.h"

namespace optshard {

StateFormat StateOptions::SlotFormat(DType parameter, int64_t elements) const {
  if (parameter == DType::kFloat64) return StateFormat::kFloat64;
  return IsCoded(format) && elements < kElementsWorthCoding ? StateFormat::kFloat32 : format;
}

bool StateOptions::HasMaster(DType parameter) const {
  return master_weights && SizeOf(parameter) < SizeOf(DType::kFloat32);
}

absl::Status StateOptions::Validate(const ParameterSpace& space) const {
  const absl::Status known =
      ParseStateFormat(IsKnown(format) ? NameOf(format) : "(unknown)").status();
  if (!known.ok()) return known;
  if (!master_weights) return absl::OkStatus();
  for (int p = 0; p < space.parameter_count(); ++p) {
    if (HasMaster(space.parameter(p).dtype)) return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      "master_weights is true, but no parameter is bfloat16 or float16, and only those have "
      "masters: leave it false");
}

}  // namespace optshard
