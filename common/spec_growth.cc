#include "common/spec_growth.h"

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/digest.h"
#include "common/hyperparameters.h"

namespace optshard {
namespace {

bool IsOfLastAdmission(const ParameterSpace& space, size_t group) {
  return space.groups()[group].admission + 1 == space.admission_count();
}

std::string TextOf(const Hyperparameters& values, const std::string& name) {
  const HyperValue* value = values.Find(name);
  return value == nullptr ? "none" : ToString(*value);
}

}  // namespace

OptimizerSpec BeforeLastAdmission(const OptimizerSpec& spec) {
  OptimizerSpec before = spec;
  std::vector<GroupSpec> groups;
  for (size_t g = 0; g < spec.space.groups().size(); ++g) {
    if (IsOfLastAdmission(spec.space, g)) continue;
    GroupSpec group = spec.space.groups()[g];
    if (!group.additions.empty() &&
        group.additions.back().admission + 1 == spec.space.admission_count()) {
      group.parameters.resize(group.additions.back().first);
      group.additions.pop_back();
    }
    groups.push_back(std::move(group));
  }
  before.rules.resize(groups.size());
  before.space = ParameterSpace(std::move(groups));
  return before;
}

absl::Status CheckGrowth(const OptimizerSpec& present, const OptimizerSpec& next) {
  absl::Status valid = next.Validate();
  if (!valid.ok()) return valid;
  const int admissions = present.space.admission_count() + 1;
  if (next.space.admission_count() != admissions) {
    return absl::InvalidArgumentError(absl::StrCat("what is to be added to the param groups makes ",
                                                   next.space.admission_count(),
                                                   " admissions, expected ", admissions));
  }
  const absl::optional<std::string> difference =
      FirstDifference(present, "the optimizer", BeforeLastAdmission(next), "the proposal");
  if (!difference.has_value()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "what is added to the param groups changes nothing of what is there, but ", *difference));
}

uint64_t GrowthDigest(const OptimizerSpec& spec) {
  DigestBuilder digest("optshard.Growth");
  digest.AddInt(static_cast<int64_t>(spec.Digest()));
  for (size_t g = 0; g < spec.space.groups().size(); ++g) {
    if (!IsOfLastAdmission(spec.space, g)) continue;
    digest.AddInt(static_cast<int64_t>(spec.rules[g].hyperparameters.Digest()));
  }
  return digest.value();
}

absl::optional<std::string> FirstGrowthDifference(const OptimizerSpec& a, absl::string_view a_name,
                                                  const OptimizerSpec& b,
                                                  absl::string_view b_name) {
  absl::optional<std::string> difference = FirstDifference(a, a_name, b, b_name);
  if (difference.has_value()) return difference;
  for (size_t g = 0; g < a.space.groups().size(); ++g) {
    if (!IsOfLastAdmission(a.space, g)) continue;
    const Hyperparameters& of_a = a.rules[g].hyperparameters;
    const Hyperparameters& of_b = b.rules[g].hyperparameters;
    std::map<std::string, HyperValue> names = of_a.values();
    names.insert(of_b.values().begin(), of_b.values().end());
    for (const auto& [name, unused] : names) {
      const std::string text_a = TextOf(of_a, name);
      const std::string text_b = TextOf(of_b, name);
      if (text_a == text_b) continue;
      return absl::StrFormat("option \"%s\" of param group %d: %s has %s, %s has %s", name, g,
                             a_name, text_a, b_name, text_b);
    }
  }
  return absl::nullopt;
}

}  // namespace optshard
