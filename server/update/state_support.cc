#include "server/update/state_support.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace optshard {
namespace {

std::vector<std::string> SlotsNotInEightBits(const RuleSpec& spec) {
  std::vector<std::string> names;
  for (const SlotSpec& slot : spec.slots) {
    if (slot.eight_bit == EightBit::kNo) names.push_back(slot.name);
  }
  return names;
}

}  // namespace

absl::Status CheckStateFormat(const UpdateRule& rule, StateFormat format) {
  if (!IsCoded(format)) return absl::OkStatus();
  const std::vector<std::string> refused = SlotsNotInEightBits(rule.spec());
  if (refused.empty()) return absl::OkStatus();
  std::vector<std::string> others;
  for (const UpdateRule* other : RuleRegistry::All()) {
    if (SlotsNotInEightBits(other->spec()).empty()) others.push_back(other->spec().name);
  }
  return absl::InvalidArgumentError(absl::StrFormat(
      "rule \"%s\": state_dtype is \"%s\", but %s cannot be kept in 8 bits; choose \"float32\" or "
      "\"bfloat16\", or a rule that can: %s",
      rule.spec().name, NameOf(format), absl::StrJoin(refused, ", "),
      others.empty() ? "none" : absl::StrJoin(others, ", ")));
}

BlockCode BlockCodeOf(StateFormat format, EightBit kept) {
  if (format == StateFormat::kInt8Dynamic) {
    return kept == EightBit::kSigned ? BlockCode::kDynamicSigned : BlockCode::kDynamicUnsigned;
  }
  return kept == EightBit::kSigned ? BlockCode::kCompandedAverage : BlockCode::kCompandedSquare;
}

}  // namespace optshard
