#include "common/parameter_space.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/checked_math.h"
#include "common/digest.h"
#include "common/request_limits.h"

namespace optshard {
namespace {

std::string Quoted(absl::string_view text) {
  return absl::StrCat("\"", absl::Utf8SafeCEscape(text), "\"");
}

std::string ShapeText(const std::vector<int64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

bool SameSpec(const ParameterSpec& a, const ParameterSpec& b) {
  return a.name == b.name && a.shape == b.shape && a.dtype == b.dtype && a.device == b.device &&
         a.update_cost == b.update_cost && a.main_gradient == b.main_gradient;
}

// What else SpecText says.
struct Details {
  bool device = false;
  bool cost = false;
};

// '"fc.weight" float32 [10, 64]', whether it has a main gradient, and where it lies and what an
// update costs if that matters.
std::string SpecText(const ParameterSpec& spec, Details details) {
  std::string text =
      absl::StrCat(Quoted(spec.name), " ",
                   IsKnown(spec.dtype) ? NameOf(spec.dtype) : absl::string_view("(unknown dtype)"),
                   " ", ShapeText(spec.shape));
  if (spec.main_gradient) absl::StrAppend(&text, " with a float32 gradient");
  if (details.device) absl::StrAppend(&text, " on ", Quoted(spec.device));
  if (details.cost) absl::StrAppend(&text, " with the update cost ", spec.update_cost);
  return text;
}

}  // namespace

int64_t ElementsOf(absl::Span<const int64_t> shape) {
  if (std::any_of(shape.begin(), shape.end(), [](int64_t extent) { return extent <= 0; })) return 0;
  int64_t product = 1;
  for (int64_t extent : shape) product = SaturatingMultiply(product, extent);
  return product;
}

int64_t ParameterSpec::elements() const { return ElementsOf(shape); }

ParameterSpace::ParameterSpace(std::vector<GroupSpec> groups) : groups_(std::move(groups)) {
  for (size_t g = 0; g < groups_.size(); ++g) {
    const GroupSpec& group = groups_[g];
    const auto count = static_cast<int>(group.parameters.size());
    last_admission_ = std::max(last_admission_, group.admission);
    auto next = group.additions.begin();
    int admission = group.admission;
    for (int within = 0; within < count; ++within) {
      for (; next != group.additions.end() && next->first <= within; ++next) {
        admission = next->admission;
        last_admission_ = std::max(last_admission_, admission);
      }
      index_.push_back({static_cast<int>(g), within, admission, parameter_count()});
    }
  }
  if (has_additions()) {
    std::stable_sort(index_.begin(), index_.end(),
                     [](const Place& a, const Place& b) { return a.admission < b.admission; });
  }
  index_at_.resize(index_.size());
  for (int p = 0; p < parameter_count(); ++p) index_at_[index_[p].position] = p;
}

const ParameterSpec& ParameterSpace::parameter(int index) const {
  const Place& place = index_[index];
  return groups_[place.group].parameters[place.within];
}

int ParameterSpace::group_of(int index) const { return index_[index].group; }

int64_t ParameterSpace::total_elements() const {
  int64_t total = 0;
  for (int i = 0; i < parameter_count(); ++i) {
    total = SaturatingAdd(total, parameter(i).elements());
  }
  return total;
}

absl::Status ParameterSpace::Validate() const {
  absl::Status count = CheckCount("the number of param groups", group_count(), kMaxGroups);
  count.Update(CheckCount("the number of parameters", parameter_count(), kMaxParameters));
  if (!count.ok()) return count;
  absl::Status admissions = CheckAdmissions();
  if (!admissions.ok()) return admissions;
  absl::flat_hash_map<absl::string_view, int> by_name;
  absl::flat_hash_set<absl::string_view> devices;
  int64_t bytes = 0;
  int64_t cost = 0;
  for (int i = 0; i < parameter_count(); ++i) {
    const ParameterSpec& spec = parameter(i);
    // The texts are made only where there is something to say: there may be very many parameters.
    const auto where = [&](absl::string_view what) {
      return absl::StrCat("parameter ", i, " (group ", group_of(i), "): ", what);
    };
    if (spec.name.size() > kMaxParameterNameBytes) {
      return CheckLength(where("its name"), spec.name, kMaxParameterNameBytes);
    }
    if (spec.device.size() > kMaxNameBytes) {
      return CheckLength(where("the name of its device"), spec.device);
    }
    if (spec.shape.size() > kMaxDimensions) {
      return CheckCount(where("the number of its dimensions"),
                        static_cast<int64_t>(spec.shape.size()), kMaxDimensions);
    }
    devices.insert(spec.device);
    if (devices.size() > kMaxDevices) {
      return CheckCount(where("the number of devices up to it"),
                        static_cast<int64_t>(devices.size()), kMaxDevices);
    }
    const auto error = [&](const auto&... what) {
      return absl::InvalidArgumentError(absl::StrCat("parameter ", i, " (group ", group_of(i), ") ",
                                                     Quoted(spec.name), ": ", what...));
    };
    if (spec.name.empty()) return error("it has no name; names must be unique and not empty");
    const auto [known, inserted] = by_name.try_emplace(spec.name, i);
    if (!inserted) {
      return error("parameter ", known->second, " has the same name; names must be unique");
    }
    for (int64_t extent : spec.shape) {
      if (extent < 0) {
        return error("the shape ", ShapeText(spec.shape), " has a negative extent");
      }
    }
    if (!IsKnown(spec.dtype)) {
      return error("unknown dtype number ", static_cast<int>(spec.dtype));
    }
    if (spec.main_gradient && SizeOf(spec.dtype) != 2) {
      return error("it is ", NameOf(spec.dtype),
                   " and has a main gradient; expected one of bfloat16 or float16 parameters only");
    }
    if (spec.device.empty()) return error("it has no device; expected one such as \"cpu\"");
    bytes = SaturatingAdd(
        bytes, SaturatingMultiply(spec.elements(), static_cast<int64_t>(SizeOf(spec.dtype))));
    if (bytes > kMaxSpaceBytes) {
      return error("its shape ", ShapeText(spec.shape),
                   " brings all parameters together to more than ", kMaxSpaceBytes, " bytes");
    }
    if (spec.update_cost < 0) {
      return error("its update cost is ", spec.update_cost, "; expected at least 0");
    }
    cost = SaturatingAdd(cost, spec.update_cost);
    if (cost > kMaxSpaceUpdateCost) {
      return error("its update cost ", spec.update_cost,
                   " brings all parameters together to more than ", kMaxSpaceUpdateCost);
    }
  }
  return absl::OkStatus();
}

// Groups come in the order of their admissions, additions of a group after it and in order, and
// each admission brings something.
absl::Status ParameterSpace::CheckAdmissions() const {
  size_t additions = 0;
  for (const GroupSpec& group : groups_) additions += group.additions.size();
  absl::Status count = CheckCount("the number of additions to param groups",
                                  static_cast<int64_t>(additions), kMaxGroups);
  if (!count.ok()) return count;
  const auto limit = static_cast<int>(groups_.size() + additions);
  std::vector<bool> known(limit, false);
  const auto take = [&](int admission) {
    if (admission < 0 || admission >= limit) return false;
    known[admission] = true;
    return true;
  };
  for (int g = 0; g < group_count(); ++g) {
    const GroupSpec& group = groups_[g];
    const int least = g == 0 ? 0 : groups_[g - 1].admission;
    if (group.admission < least || (g == 0 && group.admission != 0) || !take(group.admission)) {
      return absl::InvalidArgumentError(
          absl::StrCat("group ", g, " came by admission ", group.admission, ", expected ",
                       g == 0 ? "" : absl::StrCat(least, " to "), g == 0 ? 0 : limit - 1));
    }
    GroupSpec::Addition before = {-1, group.admission};
    for (const GroupSpec::Addition& addition : group.additions) {
      const bool has_parameters =
          addition.first < static_cast<int>(group.parameters.size()) && addition.first >= 0;
      if (!has_parameters || addition.first <= before.first ||
          addition.admission <= before.admission || !take(addition.admission)) {
        return absl::InvalidArgumentError(
            absl::StrCat("group ", g, " of ", group.parameters.size(),
                         " parameters has an addition from ", addition.first, " on by admission ",
                         addition.admission, ", expected a later admission and parameter than ",
                         before.admission, " and ", before.first));
      }
      before = addition;
    }
  }
  for (int admission = 0; admission <= last_admission_ && !groups_.empty(); ++admission) {
    if (known[admission]) continue;
    return absl::InvalidArgumentError(absl::StrCat("nothing came by admission ", admission,
                                                   ", expected something by each up to the last, ",
                                                   last_admission_));
  }
  return absl::OkStatus();
}

bool ParameterSpace::has_update_costs() const {
  for (int i = 0; i < parameter_count(); ++i) {
    if (parameter(i).update_cost != 0) return true;
  }
  return false;
}

bool ParameterSpace::has_admissions() const {
  return std::any_of(groups_.begin(), groups_.end(),
                     [](const GroupSpec& group) { return group.admission != 0; });
}

bool ParameterSpace::has_additions() const {
  return std::any_of(groups_.begin(), groups_.end(),
                     [](const GroupSpec& group) { return !group.additions.empty(); });
}

uint64_t ParameterSpace::Digest() const {
  DigestBuilder digest("optshard.ParameterSpace");
  digest.AddInt(group_count());
  for (const GroupSpec& group : groups_) {
    digest.AddInt(static_cast<int64_t>(group.parameters.size()));
    for (const ParameterSpec& spec : group.parameters) {
      digest.AddText(spec.name).AddInt(static_cast<int64_t>(spec.dtype)).AddText(spec.device);
      digest.AddInt(spec.main_gradient ? 1 : 0);
      digest.AddInt(static_cast<int64_t>(spec.shape.size()));
      for (int64_t extent : spec.shape) digest.AddInt(extent);
    }
  }
  if (has_update_costs()) {
    for (int i = 0; i < parameter_count(); ++i) digest.AddInt(parameter(i).update_cost);
  }
  if (has_admissions()) {
    for (const GroupSpec& group : groups_) digest.AddInt(group.admission);
  }
  if (has_additions()) {
    for (const GroupSpec& group : groups_) {
      digest.AddInt(static_cast<int64_t>(group.additions.size()));
      for (const GroupSpec::Addition& addition : group.additions) {
        digest.AddInt(addition.first).AddInt(addition.admission);
      }
    }
  }
  return digest.value();
}

absl::optional<std::string> FirstDifference(const ParameterSpace& a, absl::string_view a_name,
                                            const ParameterSpace& b, absl::string_view b_name) {
  const int common = std::min(a.parameter_count(), b.parameter_count());
  for (int i = 0; i < common; ++i) {
    const ParameterSpec& in_a = a.parameter(i);
    const ParameterSpec& in_b = b.parameter(i);
    const Details details = {in_a.device != in_b.device, in_a.update_cost != in_b.update_cost};
    if (a.group_of(i) != b.group_of(i)) {
      return absl::StrCat("parameter ", i, ": ", a_name, " has ", SpecText(in_a, details),
                          " in group ", a.group_of(i), ", ", b_name, " has ",
                          SpecText(in_b, details), " in group ", b.group_of(i));
    }
    if (!SameSpec(in_a, in_b)) {
      return absl::StrCat("parameter ", i, " (group ", a.group_of(i), "): ", a_name, " has ",
                          SpecText(in_a, details), ", ", b_name, " has ", SpecText(in_b, details));
    }
  }
  if (a.parameter_count() != b.parameter_count()) {
    const bool a_longer = a.parameter_count() > b.parameter_count();
    const ParameterSpace& longer = a_longer ? a : b;
    return absl::StrCat("parameter ", common, " (group ", longer.group_of(common),
                        "): ", a_longer ? a_name : b_name, " has ",
                        SpecText(longer.parameter(common), {}), ", ", a_longer ? b_name : a_name,
                        " has only ", common, " parameters");
  }
  if (a.group_count() != b.group_count()) {
    return absl::StrCat("the number of parameter groups: ", a_name, " has ", a.group_count(), ", ",
                        b_name, " has ", b.group_count(), " (the surplus ones are empty)");
  }
  for (int i = 0; i < common; ++i) {
    if (a.admission_of(i) == b.admission_of(i)) continue;
    return absl::StrCat("parameter ", i, " (group ", a.group_of(i), ") ",
                        Quoted(a.parameter(i).name), ": ", a_name, " has it by admission ",
                        a.admission_of(i), ", ", b_name, " by admission ", b.admission_of(i));
  }
  for (int group = 0; group < a.group_count(); ++group) {
    const int in_a = a.groups()[group].admission;
    const int in_b = b.groups()[group].admission;
    if (in_a == in_b) continue;
    return absl::StrCat("group ", group, ": ", a_name, " has it by admission ", in_a, ", ", b_name,
                        " by admission ", in_b);
  }
  return absl::nullopt;
}

}  // namespace optshard
