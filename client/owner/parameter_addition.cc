#include "client/owner/parameter_addition.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace optshard {
namespace {

using torch::optim::OptimizerParamGroup;

// Whether they begin with the same tensors as the shorter one has.
bool BeginAlike(const std::vector<at::Tensor>& one, const std::vector<at::Tensor>& other) {
  const auto count = static_cast<std::ptrdiff_t>(std::min(one.size(), other.size()));
  return std::equal(one.begin(), one.begin() + count, other.begin(),
                    [](const at::Tensor& a, const at::Tensor& b) { return a.is_same(b); });
}

}  // namespace

ParameterAddition ParameterAddition::Group(const OptimizerParamGroup& group) {
  return {group, absl::nullopt};
}

ParameterAddition ParameterAddition::To(int group, std::vector<at::Tensor> parameters) {
  return {OptimizerParamGroup(std::move(parameters)), group};
}

bool ParameterAddition::IsSame(const ParameterAddition& other) const {
  return to == other.to && parameters().size() == other.parameters().size() &&
         BeginAlike(parameters(), other.parameters());
}

std::vector<ParameterAddition> AdditionsTo(const std::vector<std::vector<at::Tensor>>& constructed,
                                           const std::vector<OptimizerParamGroup>& groups) {
  std::vector<ParameterAddition> additions;
  if (groups.size() < constructed.size()) return additions;
  for (size_t g = 0; g < constructed.size(); ++g) {
    const std::vector<at::Tensor>& now = groups[g].params();
    const std::vector<at::Tensor>& then = constructed[g];
    if (now.size() < then.size() || !BeginAlike(now, then)) return {};
    if (now.size() == then.size()) continue;
    const auto first = now.begin() + static_cast<std::ptrdiff_t>(then.size());
    additions.push_back(
        ParameterAddition::To(static_cast<int>(g), std::vector<at::Tensor>(first, now.end())));
  }
  for (size_t g = constructed.size(); g < groups.size(); ++g) {
    additions.push_back(ParameterAddition::Group(groups[g]));
  }
  return additions;
}

void TakeOff(const std::vector<ParameterAddition>& additions,
             std::vector<OptimizerParamGroup>& groups) {
  for (const ParameterAddition& addition : additions) {
    if (!addition.to.has_value()) {
      groups.pop_back();
      continue;
    }
    std::vector<at::Tensor>& params = groups[*addition.to].params();
    params.resize(params.size() - addition.parameters().size());
  }
}

void PutOn(const ParameterAddition& addition, std::vector<OptimizerParamGroup>& groups) {
  if (!addition.to.has_value()) {
    groups.push_back(addition.given);
    return;
  }
  std::vector<at::Tensor>& params = groups[*addition.to].params();
  params.insert(params.end(), addition.parameters().begin(), addition.parameters().end());
}

void ReserveFor(const ParameterAddition& addition, std::vector<OptimizerParamGroup>& groups) {
  if (!addition.to.has_value()) {
    groups.reserve(groups.size() + 1);
    return;
  }
  std::vector<at::Tensor>& params = groups[*addition.to].params();
  params.reserve(params.size() + addition.parameters().size());
}

}  // namespace optshard
