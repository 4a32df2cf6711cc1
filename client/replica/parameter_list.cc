#include "client/replica/parameter_list.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/replica/scalar_type.h"

namespace optshard {
namespace {

struct Place {
  std::string name;
  int group = 0;
  int within = 0;

  std::string Text() const {
    return absl::StrCat("parameter \"", name, "\" (number ", within, " of group ", group, ")");
  }
};

std::string ShapeText(const at::Tensor& tensor) {
  return absl::StrCat("[", absl::StrJoin(tensor.sizes(), ", "), "]");
}

// `first` is the first parameter.
absl::Status CheckTensor(const at::Tensor& tensor, const Place& place, const at::Tensor& first) {
  const auto error = [&place](const auto&... what) {
    return absl::InvalidArgumentError(absl::StrCat(place.Text(), what...));
  };
  if (!tensor.defined()) return error(" is an undefined tensor: leave it out");
  if (tensor.layout() != at::kStrided) {
    return error(" is ", c10::str(tensor.layout()),
                 "; parameters must be dense: optimize what its to_dense() gives");
  }
  if (tensor.is_meta()) return error(" is on meta and has no values: move it to a device");
  if (tensor.device() != first.device()) {
    return error(" is on ", tensor.device().str(), "; the first parameter is on ",
                 first.device().str(),
                 ", and all parameters of an optimizer are on one device: move it there, or make "
                 "an optimizer for each device");
  }
  if (!DTypeOf(tensor.scalar_type()).has_value()) {
    return error(" is ", c10::toString(tensor.scalar_type()),
                 "; parameters are float32, float64, float16 or bfloat16: convert it, or leave it "
                 "out");
  }
  if (!tensor.is_leaf()) {
    return error(
        " is the result of an operation, not a leaf: optimize the tensor it was computed from, or "
        "detach() it");
  }
  return absl::OkStatus();
}

// Two names for the same memory would be stepped twice, and no longer be the same once they are
// moved into flat memory.
absl::Status CheckDistinctMemory(const std::vector<at::Tensor>& tensors,
                                 const std::vector<Place>& places) {
  struct Extent {
    const char* begin;
    const char* end;
    size_t index;
  };
  std::vector<Extent> extents;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].numel() == 0 || !tensors[i].is_contiguous()) continue;
    const char* begin = static_cast<const char*>(tensors[i].const_data_ptr());
    extents.push_back({begin, begin + tensors[i].nbytes(), i});
  }
  std::sort(extents.begin(), extents.end(), [](const Extent& a, const Extent& b) {
    return std::make_pair(a.begin, a.index) < std::make_pair(b.begin, b.index);
  });
  for (size_t i = 1; i < extents.size(); ++i) {
    if (extents[i].begin >= extents[i - 1].end) continue;
    const size_t first = std::min(extents[i - 1].index, extents[i].index);
    const size_t second = std::max(extents[i - 1].index, extents[i].index);
    return absl::InvalidArgumentError(
        absl::StrCat(places[first].Text(), " and ", places[second].Text(),
                     " share memory: give tensors that are tied to each other once"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ParameterList> MakeParameterList(const std::vector<std::vector<at::Tensor>>& groups,
                                                const std::vector<std::string>& names) {
  size_t given = 0;
  for (const std::vector<at::Tensor>& group : groups) given += group.size();
  if (given == 0) {
    return absl::InvalidArgumentError(
        "there is no parameter to optimize: the list is empty (a module has no parameters before "
        "its layers are registered)");
  }
  if (!names.empty() && names.size() != given) {
    return absl::InvalidArgumentError(absl::StrCat("parameter_names has ", names.size(),
                                                   " names for ", given,
                                                   " parameters: give one each, or none at all"));
  }
  ParameterList list;
  std::vector<Place> places;           // of list.tensors
  std::map<const void*, size_t> seen;  // where each tensor is in it
  std::vector<GroupSpec> specs(groups.size());
  auto next_name = names.begin();
  for (size_t group = 0; group < groups.size(); ++group) {
    if (groups[group].empty()) {
      list.empty_group_warnings.push_back(
          absl::StrCat("param group ", group, " has no parameters: its options change nothing"));
    }
    for (size_t within = 0; within < groups[group].size(); ++within) {
      const at::Tensor& tensor = groups[group][within];
      const size_t index = list.tensors.size();
      const Place place = {names.empty() ? absl::StrCat("parameter_", index) : *next_name++,
                           static_cast<int>(group), static_cast<int>(within)};
      const at::Tensor& first = list.tensors.empty() ? tensor : list.tensors[0];
      if (absl::Status status = CheckTensor(tensor, place, first); !status.ok()) return status;
      const auto [earlier, first_time] = seen.emplace(tensor.unsafeGetTensorImpl(), index);
      if (!first_time) {
        const Place& before = places[earlier->second];
        if (before.group != place.group) {
          return absl::InvalidArgumentError(
              absl::StrCat(before.Text(), " is given again as ", place.Text(),
                           ": a parameter stands in one group; leave it out of the other"));
        }
        list.warnings.push_back(absl::StrCat(before.Text(), " is given again as ", place.Text(),
                                             ": it is counted once"));
        continue;
      }
      ParameterSpec spec;
      spec.name = place.name;
      spec.dtype = *DTypeOf(tensor.scalar_type());
      spec.device = c10::DeviceTypeName(tensor.device().type(), /*lower_case=*/true);
      spec.shape.assign(tensor.sizes().begin(), tensor.sizes().end());
      // It may be moved when the optimizer is made.
      if (tensor.grad().defined()) {
        absl::Status usable = CheckGradient(tensor, tensor.grad(), spec.name);
        if (!usable.ok()) return usable;
      }
      specs[group].parameters.push_back(std::move(spec));
      list.tensors.push_back(tensor);
      places.push_back(place);
    }
  }
  if (absl::Status status = CheckDistinctMemory(list.tensors, places); !status.ok()) return status;
  list.device = list.tensors[0].device();
  list.space = ParameterSpace(std::move(specs));
  if (absl::Status status = list.space.Validate(); !status.ok()) return status;
  return list;
}

absl::Status UseMainGradients(ParameterList& list) {
  std::vector<GroupSpec> groups = list.space.groups();
  bool any = false;
  for (GroupSpec& group : groups) {
    for (ParameterSpec& parameter : group.parameters) {
      parameter.main_gradient = SizeOf(parameter.dtype) == 2;
      any = any || parameter.main_gradient;
    }
  }
  if (!any) {
    return absl::InvalidArgumentError(
        "main_gradients is true, but no parameter is bfloat16 or float16, and only those have "
        "gradients of less than float32: leave it false");
  }
  list.space = ParameterSpace(std::move(groups));
  return absl::OkStatus();
}

absl::Status CheckGradient(const at::Tensor& parameter, const at::Tensor& gradient,
                           const std::string& name) {
  const auto error = [&name](const auto&... what) {
    return absl::InvalidArgumentError(
        absl::StrCat("the gradient of parameter \"", name, "\" ", what...));
  };
  const bool has_rows =
      gradient.layout() == at::kSparse && gradient.sparse_dim() == 1 && gradient.dense_dim() > 0;
  if (gradient.layout() != at::kStrided && !has_rows) {
    return error("is ", c10::str(gradient.layout()),
                 " and not of whole rows, as those of an Embedding with sparse=True are: make it "
                 "dense with to_dense()");
  }
  if (has_rows && !gradient.device().is_cpu()) {
    return error("is sparse and on ", gradient.device().str(),
                 ", where gradients are dense: make it dense with to_dense()");
  }
  if (gradient.device() != parameter.device()) {
    return error("is on ", gradient.device().str(), "; the parameter is on ",
                 parameter.device().str(), ": move the gradient there");
  }
  if (gradient.scalar_type() != parameter.scalar_type()) {
    return error("is ", c10::toString(gradient.scalar_type()), "; the parameter is ",
                 c10::toString(parameter.scalar_type()),
                 ": convert the gradient to the parameter's type");
  }
  if (gradient.sizes() != parameter.sizes()) {
    return error("has the shape ", ShapeText(gradient), "; the parameter has ",
                 ShapeText(parameter), ": give a gradient of the parameter's shape");
  }
  return absl::OkStatus();
}

}  // namespace optshard
