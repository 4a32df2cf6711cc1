#include "client/replica/trainable_watch.h"

#include <cstddef>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace optshard {
namespace {

// The parameters of one kind of change.
class NameList {
 public:
  void Add(const std::string& name) {
    if (count_++ < kNamed) named_.push_back(absl::StrCat("\"", name, "\""));
  }
  bool empty() const { return count_ == 0; }
  std::string Text() const {
    std::string text = absl::StrCat("parameter", count_ > 1 ? "s " : " ");
    absl::StrAppend(&text, absl::StrJoin(named_, ", "));
    if (count_ > kNamed) absl::StrAppend(&text, " and ", count_ - kNamed, " more");
    return text;
  }

 private:
  static constexpr size_t kNamed = 4;

  std::vector<std::string> named_;
  size_t count_ = 0;
};

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
  if (!frozen.empty()) {
    said.push_back(absl::StrCat("requires_grad is now false of ", frozen.Text()));
  }
  if (!unfrozen.empty()) {
    said.push_back(absl::StrCat("requires_grad is now true of ", unfrozen.Text()));
  }
  return absl::StrJoin(said, "; ");
}

}  // namespace optshard
