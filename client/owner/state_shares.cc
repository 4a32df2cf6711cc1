#include "client/owner/state_shares.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"
#include "common/errors.h"

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
    return absl::InvalidArgumentError(
        absl::StrCat("the state \"", name, "\" of parameter ", part.parameter, " \"", part.name,
                     "\" has the shape ", c10::str(tensor.sizes()), ", expected ",
                     c10::str(at::IntArrayRef(shape)), ": the parameter is cut between ranks"));
  }
  return c10::IValue(
      tensor.detach().reshape(-1).narrow(0, part.offset_elements, part.shape[0]).clone());
}

absl::Status CheckGroups(const StateDict& dict, const std::vector<int>& parameters,
                         const ParameterOwners& owners) {
  const auto groups = static_cast<size_t>(owners.space().group_count());
  std::vector<size_t> expected(groups);
  for (const int parameter : parameters) ++expected[owners.GroupOf(parameter)];
  int64_t next = 0;
  for (size_t g = 0; g < dict.param_groups.size() && g < groups; ++g) {
    const std::vector<int64_t>& params = dict.param_groups[g].params;
    bool numbered = params.size() == expected[g];
    for (const int64_t index : params) numbered = numbered && index == next++;
    if (numbered) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("param group ", g, " of the state dict has ", params.size(),
                     " parameters, expected ", expected[g], ", numbered over the groups in order"));
  }
  if (dict.param_groups.size() == groups) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the state dict has ", dict.param_groups.size(),
                                                 " param groups, expected ", groups));
}

}  // namespace

std::vector<int> ParametersOf(const ParameterOwners& owners, Rank rank) {
  std::vector<int> parameters;
  for (int p = 0; p < owners.space().parameter_count(); ++p) {
    if (owners.PartOf(p, rank).has_value()) parameters.push_back(p);
  }
  return parameters;
}

absl::StatusOr<StateDict> CutShare(const StateDict& whole, const ParameterOwners& owners,
                                   Rank rank) {
  if (rank < 0 || rank >= owners.world_size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("there is no rank ", rank, ": there are ", owners.world_size()));
  }
  const at::NoGradGuard no_grad;
  std::vector<int> all;
  for (int p = 0; p < owners.space().parameter_count(); ++p) all.push_back(p);
  absl::Status groups = CheckGroups(whole, all, owners);
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
    const auto state = whole.state.find(parameter);
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

absl::StatusOr<StateDict> MergeShares(const std::vector<StateDict>& shares,
                                      const ParameterOwners& owners) {
  if (static_cast<int>(shares.size()) != owners.world_size()) {
    return absl::InvalidArgumentError(absl::StrCat(shares.size(), " shares were given, expected ",
                                                   owners.world_size(), ", one of each rank"));
  }
  const at::NoGradGuard no_grad;
  StateDict whole;
  for (const StateDict::Group& group : shares[0].param_groups) {
    whole.param_groups.push_back({group.options, {}});
  }
  for (Rank rank = 0; rank < owners.world_size(); ++rank) {
    const std::vector<int> parameters = ParametersOf(owners, rank);
    absl::Status groups = CheckGroups(shares[rank], parameters, owners);
    if (!groups.ok()) return errors::WithContext(groups, absl::StrCat("the share of rank ", rank));
    for (const auto& [index, values] : shares[rank].state) {
      if (index < 0 || index >= static_cast<int64_t>(parameters.size())) {
        return absl::InvalidArgumentError(absl::StrCat("the share of rank ", rank, " has state of ",
                                                       "parameter ", index, " of ",
                                                       parameters.size()));
      }
      const OwnedPart part = *owners.PartOf(parameters[index], rank);
      StateValues& merged = whole.state[part.parameter];
      for (const auto& [name, value] : values) {
        if (!IsCut(owners, part) || !IsTensor(value) || value.toTensor().dim() == 0) {
          merged.emplace(name, value);
          continue;
        }
        const at::Tensor& piece = value.toTensor();
        if (piece.sizes() != at::IntArrayRef(part.shape)) {
          return absl::InvalidArgumentError(absl::StrCat(
              "\"", name, "\" of parameter ", part.parameter, " in the share of rank ", rank,
              " has the shape ", c10::str(piece.sizes()), ", expected [", part.shape[0], "]"));
        }
        const auto entry = merged.find(name);
        at::Tensor target =
            entry != merged.end()
                ? entry->second.toTensor()
                : at::empty(owners.space().parameter(part.parameter).shape, piece.options());
        target.view(-1).narrow(0, part.offset_elements, part.shape[0]).copy_(piece);
        if (entry == merged.end()) merged.emplace(name, target);
      }
    }
  }
  for (int p = 0; p < owners.space().parameter_count(); ++p) {
    whole.param_groups[owners.GroupOf(p)].params.push_back(p);
  }
  return whole;
}

}  // namespace optshard
