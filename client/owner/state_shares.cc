#include "client/owner/state_shares.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"

namespace optshard {
namespace {

// Whether the rank owns only some of the parameter's elements.
bool IsCut(const ParameterOwners& owners, const OwnedPart& part) {
  return part.shape != owners.space().parameter(part.parameter).shape;
}

bool IsTensor(const c10::IValue& value) { return value.isTensor() && value.toTensor().defined(); }

absl::StatusOr<c10::IValue> CutValue(const c10::IValue& value, const std::string& name,
                                     const ParameterOwners& owners, const OwnedPart& part) {
  if (!IsTensor(value)) return value;
  const at::Tensor& tensor = value.toTensor();
  // One number has no dimensions in a share, where what is cut may have one element.
  if (tensor.numel() == 1) return c10::IValue(tensor.reshape({}));
  const std::vector<int64_t>& shape = owners.space().parameter(part.parameter).shape;
  if (tensor.sizes() != at::IntArrayRef(shape)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the state \"", name, "\" of parameter ", owners.space().position_of(part.parameter), " \"",
        part.name, "\" has the shape ", c10::str(tensor.sizes()), ", expected ",
        c10::str(at::IntArrayRef(shape)), ": the parameter is cut between ranks"));
  }
  return c10::IValue(
      tensor.detach().reshape(-1).narrow(0, part.offset_elements, part.shape[0]).clone());
}

absl::Status CheckGroups(const StateDict& dict, const std::vector<GroupSpec>& groups) {
  int64_t next = 0;
  for (size_t g = 0; g < dict.param_groups.size() && g < groups.size(); ++g) {
    const std::vector<int64_t>& params = dict.param_groups[g].params;
    const size_t expected = groups[g].parameters.size();
    bool numbered = params.size() == expected;
    for (const int64_t index : params) numbered = numbered && index == next++;
    if (numbered) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("param group ", g, " of the state dict has ", params.size(),
                     " parameters, expected ", expected, ", numbered over the groups in order"));
  }
  if (dict.param_groups.size() == groups.size()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the state dict has ", dict.param_groups.size(),
                                                 " param groups, expected ", groups.size()));
}

}  // namespace

std::vector<int> ParametersOf(const ParameterOwners& owners, Rank rank) {
  std::vector<int> parameters;
  for (int position = 0; position < owners.space().parameter_count(); ++position) {
    const int p = owners.space().index_at(position);
    if (owners.PartOf(p, rank).has_value()) parameters.push_back(p);
  }
  return parameters;
}

absl::StatusOr<StateDict> CutShare(const StateDict& whole, const ParameterOwners& owners,
                                   Rank rank) {
  if (rank < 0 || rank >= owners.world_size()) {
    return absl::InvalidArgumentError(absl::StrCat("the share of rank ", rank,
                                                   " is asked for; expected a rank from 0 to ",
                                                   owners.world_size() - 1));
  }
  const at::NoGradGuard no_grad;
  absl::Status groups = CheckGroups(whole, owners.space().groups());
  if (!groups.ok()) return groups;
  StateDict share;
  for (const StateDict::Group& group : whole.param_groups) {
    share.param_groups.push_back({group.options, {}});
    share.param_groups.back().options.erase("param_names");  // of all parameters
  }
  int64_t next = 0;
  for (const int parameter : ParametersOf(owners, rank)) {
    const int64_t index = next++;
    share.param_groups[owners.GroupOf(parameter)].params.push_back(index);
    const auto state = whole.state.find(owners.space().position_of(parameter));
    if (state == whole.state.end()) continue;
    const OwnedPart part = *owners.PartOf(parameter, rank);
    StateValues& values = share.state[index];
    for (const auto& [name, value] : state->second) {
      if (!IsCut(owners, part)) {
        values.emplace(name, value);
        continue;
      }
      absl::StatusOr<c10::IValue> cut = CutValue(value, name, owners, part);
      if (!cut.ok()) return cut.status();
      values.emplace(name, *std::move(cut));
    }
  }
  return share;
}

}  // namespace optshard
