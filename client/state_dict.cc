#include "client/state_dict.h"

#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/jit_type.h>

#include <algorithm>
#include <sstream>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/digest.h"

namespace optshard {
namespace {

constexpr char kState[] = "state";
constexpr char kParamGroups[] = "param_groups";
constexpr char kParams[] = "params";

absl::Status NoStateDict(const std::string& where, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat(
      "this is no state dict of an optimizer: ", where, " is ", what,
      "; expected {\"state\": {0: {...}, ...}, \"param_groups\": [{..., \"params\": [0, ...]}, "
      "...]}"));
}

absl::StatusOr<StateValues> ValuesFrom(const c10::IValue& value, const std::string& where) {
  if (!value.isGenericDict()) return NoStateDict(where, value.tagKind());
  StateValues values;
  for (const auto& entry : value.toGenericDict()) {
    if (!entry.key().isString()) return NoStateDict(where + "'s key", entry.key().tagKind());
    values.emplace(entry.key().toStringRef(), entry.value());
  }
  return values;
}

c10::impl::GenericDict ToGenericDict(const StateValues& values) {
  c10::impl::GenericDict dict(c10::StringType::get(), c10::AnyType::get());
  for (const auto& [name, value] : values) dict.insert(name, value);
  return dict;
}

std::string DigestOf(const c10::IValue& value) {
  DigestBuilder digest("optshard.StateValue");
  digest.AddText(value.tagKind());
  if (value.isTensor() && value.toTensor().defined()) {
    const at::Tensor tensor = value.toTensor().detach().cpu().contiguous();
    digest.AddInt(static_cast<int64_t>(tensor.scalar_type())).AddInt(tensor.dim());
    for (const int64_t extent : tensor.sizes()) digest.AddInt(extent);
    if (tensor.numel() > 0) {
      digest.AddText({static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes()});
    }
  } else {
    std::ostringstream text;
    text.precision(17);
    text << value;
    digest.AddText(text.str());
  }
  return absl::StrFormat("%016x", digest.value());
}

}  // namespace

absl::StatusOr<NamedStateDict> KeyedByName(const StateDict& dict,
                                           const std::vector<std::string>& names) {
  absl::Status unknown;
  const auto name_of = [&](int64_t index) -> std::string {
    if (index >= 0 && index < static_cast<int64_t>(names.size())) return names[index];
    unknown.Update(absl::InvalidArgumentError(
        absl::StrCat("the state dict has parameter ", index, ", and there are ", names.size())));
    return "";
  };
  NamedStateDict named;
  for (const auto& [index, values] : dict.state) named.state.emplace(name_of(index), values);
  for (const StateDict::Group& group : dict.param_groups) {
    named.param_groups.push_back({group.options, {}});
    for (const int64_t index : group.params) {
      named.param_groups.back().params.push_back(name_of(index));
    }
  }
  if (!unknown.ok()) return unknown;
  return named;
}

absl::StatusOr<StateDict> KeyedByIndex(const NamedStateDict& dict,
                                       const std::vector<std::string>& names) {
  std::map<std::string, int64_t> index;
  for (const std::string& name : names) index.emplace(name, static_cast<int64_t>(index.size()));
  absl::Status unknown;
  const auto index_of = [&](const std::string& name) -> int64_t {
    const auto known = index.find(name);
    if (known != index.end()) return known->second;
    unknown.Update(absl::InvalidArgumentError(
        absl::StrCat("the state dict has a parameter \"", name, "\", and this optimizer has none ",
                     "of that name: give its parameters the names that they had")));
    return -1;
  };
  StateDict indexed;
  for (const auto& [name, values] : dict.state) indexed.state.emplace(index_of(name), values);
  std::vector<bool> seen(names.size());
  size_t next = 0;
  for (const NamedStateDict::Group& group : dict.param_groups) {
    indexed.param_groups.push_back({group.options, {}});
    std::vector<int64_t>& params = indexed.param_groups.back().params;
    for (const std::string& name : group.params) {
      params.push_back(index_of(name));
      if (!unknown.ok()) return unknown;
      if (seen[params.back()]) {
        return absl::InvalidArgumentError(
            absl::StrCat("the state dict has the parameter \"", name, "\" twice"));
      }
      seen[params.back()] = true;
    }
    std::sort(params.begin(), params.end());
    for (const int64_t index : params) {
      if (next < names.size() && index == static_cast<int64_t>(next++)) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("param group ", indexed.param_groups.size() - 1,
                       " of the state dict has the parameter \"", names[index],
                       "\", and here it is in another group: give every group the parameters that "
                       "it had"));
    }
    indexed.param_groups.back().options.erase("param_names");  // they are in another order
  }
  if (!unknown.ok()) return unknown;
  return indexed;
}

c10::IValue ToIValue(const StateDict& dict) {
  c10::impl::GenericDict state(c10::IntType::get(), c10::AnyType::get());
  for (const auto& [index, values] : dict.state) state.insert(index, ToGenericDict(values));
  c10::impl::GenericList groups(c10::AnyType::get());
  for (const StateDict::Group& group : dict.param_groups) {
    c10::impl::GenericDict each = ToGenericDict(group.options);
    each.insert(kParams, c10::IValue(group.params));
    groups.push_back(each);
  }
  c10::impl::GenericDict whole(c10::StringType::get(), c10::AnyType::get());
  whole.insert(kState, state);
  whole.insert(kParamGroups, groups);
  return whole;
}

absl::StatusOr<StateDict> StateDictFromIValue(const c10::IValue& value) {
  const absl::StatusOr<StateValues> whole = ValuesFrom(value, "the value");
  if (!whole.ok()) return whole.status();
  for (const char* const name : {kState, kParamGroups}) {
    if (whole->count(name) == 0) return NoStateDict(absl::StrCat("\"", name, "\""), "not there");
  }
  StateDict dict;
  const c10::IValue& state = whole->at(kState);
  if (!state.isGenericDict()) return NoStateDict("\"state\"", state.tagKind());
  for (const auto& entry : state.toGenericDict()) {
    if (!entry.key().isInt()) return NoStateDict("a key of \"state\"", entry.key().tagKind());
    const int64_t index = entry.key().toInt();
    absl::StatusOr<StateValues> values =
        ValuesFrom(entry.value(), absl::StrCat("state[", index, "]"));
    if (!values.ok()) return values.status();
    dict.state.emplace(index, *std::move(values));
  }
  const c10::IValue& groups = whole->at(kParamGroups);
  if (!groups.isList()) return NoStateDict("\"param_groups\"", groups.tagKind());
  for (const c10::IValue& each : groups.toListRef()) {
    const std::string where = absl::StrCat("param_groups[", dict.param_groups.size(), "]");
    absl::StatusOr<StateValues> options = ValuesFrom(each, where);
    if (!options.ok()) return options.status();
    const auto params = options->find(kParams);
    if (params == options->end() || !params->second.isList()) {
      return NoStateDict(where + "[\"params\"]", "no list");
    }
    StateDict::Group group;
    for (const c10::IValue& index : params->second.toListRef()) {
      if (!index.isInt()) return NoStateDict(where + "[\"params\"]", "not of numbers");
      group.params.push_back(index.toInt());
    }
    options->erase(params);
    group.options = *std::move(options);
    dict.param_groups.push_back(std::move(group));
  }
  return dict;
}

std::vector<std::string> DigestLines(const StateDict& dict) {
  std::vector<std::string> lines;
  for (const auto& [index, values] : dict.state) {
    for (const auto& [name, value] : values) {
      lines.push_back(absl::StrCat("state[", index, "][\"", name, "\"] ", DigestOf(value)));
    }
  }
  for (size_t g = 0; g < dict.param_groups.size(); ++g) {
    const StateDict::Group& group = dict.param_groups[g];
    const std::string where = absl::StrCat("param_groups[", g, "]");
    for (const auto& [name, value] : group.options) {
      lines.push_back(absl::StrCat(where, "[\"", name, "\"] ", DigestOf(value)));
    }
    lines.push_back(absl::StrCat(where, "[\"params\"] ", DigestOf(c10::IValue(group.params))));
  }
  return lines;
}

}  // namespace optshard
