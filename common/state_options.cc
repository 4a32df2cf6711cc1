#include "common/state_options.h"

#include "absl/strings/str_cat.h"

namespace optshard {
namespace {

bool HasAny(const ParameterSpace& space, bool (*fits)(DType dtype)) {
  for (int p = 0; p < space.parameter_count(); ++p) {
    if (fits(space.parameter(p).dtype)) return true;
  }
  return false;
}

}  // namespace

absl::StatusOr<DType> ParsePublishDType(absl::string_view name) {
  absl::StatusOr<DType> dtype = ParseDType(name);
  if (dtype.ok() && *dtype != DType::kFloat64) return dtype;
  return absl::InvalidArgumentError(absl::StrCat(
      "publish_dtype is \"", name, "\", expected one of \"float32\", \"bfloat16\", \"float16\""));
}

StateFormat StateOptions::SlotFormat(DType parameter, int64_t elements) const {
  if (parameter == DType::kFloat64) return StateFormat::kFloat64;
  return IsCoded(format) && elements < kElementsWorthCoding ? StateFormat::kFloat32 : format;
}

bool StateOptions::HasMaster(DType parameter) const {
  if (PublishedAs(parameter) != parameter) return true;
  return master_weights && master_weight_bits == 32 && SizeOf(parameter) == 2;
}

bool StateOptions::HasCorrection(DType parameter) const {
  return master_weights && master_weight_bits == 24 && SizeOf(parameter) == 2;
}

bool StateOptions::MayHaveMasters() const {
  return master_weights || publish_dtype != DType::kFloat32;
}

DType StateOptions::PublishedAs(DType parameter) const {
  return parameter == DType::kFloat32 ? publish_dtype : parameter;
}

absl::Status StateOptions::Validate(const ParameterSpace& space) const {
  absl::Status known = ParseStateFormat(IsKnown(format) ? NameOf(format) : "(unknown)").status();
  if (!known.ok()) return known;
  if (master_weight_bits != 32 && (master_weight_bits != 24 || !master_weights)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "master_weight_bits is ", master_weight_bits, " and master_weights is ",
        master_weights ? "true" : "false", ", expected 32, or 24 where master_weights is true"));
  }
  if (master_weights && !HasAny(space, [](DType dtype) { return SizeOf(dtype) == 2; })) {
    return absl::InvalidArgumentError(
        "master_weights is true, but no parameter is bfloat16 or float16, and only those have "
        "masters: leave it false");
  }
  if (publish_dtype == DType::kFloat32) return absl::OkStatus();
  known = ParsePublishDType(IsKnown(publish_dtype) ? NameOf(publish_dtype) : "(unknown)").status();
  if (!known.ok()) return known;
  if (!HasAny(space, [](DType dtype) { return dtype == DType::kFloat32; })) {
    return absl::InvalidArgumentError(absl::StrCat(
        "publish_dtype is \"", NameOf(publish_dtype),
        "\", but no parameter is float32, and only those are rounded to it (16-bit ones travel as "
        "they are, and float64 ones keep their precision): leave it \"float32\""));
  }
  return absl::OkStatus();
}

}  // namespace optshard
