#include "client/replica/trainable_watch.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/name_list.h"

namespace optshard {
namespace {

std::string ParametersText(const NameList& names) {
  return absl::StrCat(names.count() > 1 ? "parameters " : "parameter ", names.Text());
}

}  // namespace

TrainableWatch::TrainableWatch(const ParameterList& list) : list_(list) {
  for (const at::Tensor& parameter : list_.tensors) {
    trainable_.push_back(parameter.requires_grad());
  }
}

std::string TrainableWatch::TakeChanges() {
  NameList frozen;
  NameList unfrozen;
  for (size_t i = 0; i < trainable_.size(); ++i) {
    const bool now = list_.tensors[i].requires_grad();
    if (now == trainable_[i]) continue;
    trainable_[i] = now;
    (now ? unfrozen : frozen).Add(list_.space.parameter(static_cast<int>(i)).name);
  }
  std::vector<std::string> said;
  if (frozen.count() > 0) {
    said.push_back(absl::StrCat("requires_grad is now false of ", ParametersText(frozen)));
  }
  if (unfrozen.count() > 0) {
    said.push_back(absl::StrCat("requires_grad is now true of ", ParametersText(unfrozen)));
  }
  return absl::StrJoin(said, "; ");
}

}  // namespace optshard
