#include "common/state_options.h"

#include "absl/strings/str_cat.h"

namespace optshard {

StateFormat StateOptions::SlotFormat(DType parameter, int64_t elements) const {
  if (parameter == DType::kFloat64) return StateFormat::kFloat64;
  return IsCoded(format) && elements < kElementsWorthCoding ? StateFormat::kFloat32 : format;
}

bool StateOptions::HasMaster(DType parameter) const {
  return master_weights && master_weight_bits == 32 && SizeOf(parameter) == 2;
}

bool StateOptions::HasCorrection(DType parameter) const {
  return master_weights && master_weight_bits == 24 && SizeOf(parameter) == 2;
}

absl::Status StateOptions::Validate(const ParameterSpace& space) const {
  absl::Status known = ParseStateFormat(IsKnown(format) ? NameOf(format) : "(unknown)").status();
  if (!known.ok()) return known;
  if (master_weight_bits != 32 && (master_weight_bits != 24 || !master_weights)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "master_weight_bits is ", master_weight_bits, " and master_weights is ",
        master_weights ? "true" : "false", ", expected 32, or 24 where master_weights is true"));
  }
  if (!master_weights) return absl::OkStatus();
  for (int p = 0; p < space.parameter_count(); ++p) {
    if (SizeOf(space.parameter(p).dtype) == 2) return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      "master_weights is true, but no parameter is bfloat16 or float16, and only those have "
      "masters: leave it false");
}

}  // namespace optshard
