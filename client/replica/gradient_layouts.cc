#include "client/replica/gradient_layouts.h"

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "server/update/gradient_support.h"

namespace optshard {

GradientLayouts::GradientLayouts(const ParameterList& list, std::vector<GroupUpdate> groups,
                                 StateFormat state)
    : list_(list), groups_(std::move(groups)), state_(state) {}

absl::StatusOr<std::vector<bool>> GradientLayouts::Check(
    absl::Span<const Hyperparameters> hyperparameters) const {
  for (size_t i = 0; i < list_.tensors.size(); ++i) {
    const at::Tensor& parameter = list_.tensors[i];
    if (!parameter.requires_grad() || !parameter.grad().defined()) continue;
    const auto index = static_cast<int>(i);
    const int group = list_.space.group_of(index);
    const std::string& name = list_.space.parameter(index).name;
    // One that no rule takes is told so first.
    absl::Status usable = parameter.grad().is_sparse()
                              ? CheckGradient(parameter, parameter.grad(), name)
                              : absl::OkStatus();
    if (!usable.ok()) return usable;
    // A main gradient is dense, whatever is added to it.
    const bool sparse = parameter.grad().is_sparse() && !list_.space.parameter(index).main_gradient;
    const absl::Status taken =
        CheckTakesGradient(*groups_[group].rule, hyperparameters[group], state_, sparse);
    if (taken.ok()) continue;
    return errors::WithContext(taken, absl::StrCat("parameter \"", name, "\""));
  }
  std::vector<bool> all_rows;
  for (size_t g = 0; g < groups_.size(); ++g) {
    all_rows.push_back(groups_[g].rule->ChangesOtherRows(hyperparameters[g]));
  }
  return all_rows;
}

}  // namespace optshard
