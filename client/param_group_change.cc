#include "client/param_group_change.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/str_cat.h"

namespace optshard {

std::string DescribeGroupChange(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                                const std::vector<std::vector<at::Tensor>>& constructed) {
  if (groups.size() != constructed.size()) {
    return absl::StrCat("param_groups() has ", groups.size(), " groups, and had ",
                        constructed.size(), " when the optimizer was made or last grew");
  }
  for (size_t i = 0; i < groups.size(); ++i) {
    const std::vector<at::Tensor>& params = groups[i].params();
    const bool same =
        std::equal(params.begin(), params.end(), constructed[i].begin(), constructed[i].end(),
                   [](const at::Tensor& now, const at::Tensor& then) { return now.is_same(then); });
    if (!same) {
      return absl::StrCat("group ", i,
                          " of param_groups() has other parameters than when it "
                          "was made");
    }
  }
  return "";
}

}  // namespace optshard
