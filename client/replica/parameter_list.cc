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

absl::Status CheckTensor(const at::Tensor& tensor, const Place& place) {
  const auto error = [&place](const auto&... what) {
    return absl::InvalidArgumentError(absl::StrCat(place.Text(), what...));
  };
  if (!tensor.defined()) return error(" is an undefined tensor");
  if (tensor.layout() != at::kStrided) {
    return error(" is ", c10::str(tensor.layout()), "; parameters must be dense");
  }
  if (!tensor.device().is_cpu()) {
    return error(" is on ", tensor.device().str(), "; only the CPU is supported so far");
  }
  if (!DTypeOf(tensor.scalar_type()).has_value()) {
    return error(" is ", c10::toString(tensor.scalar_type()),
                 "; parameters are float32, float64, float16 or bfloat16");
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
  ParameterList list;
  std::vector<Place> places;
  for (size_t group = 0; group < groups.size(); ++group) {
    for (size_t within = 0; within < groups[group].size(); ++within) {
      const size_t index = list.tensors.size();
      const std::string name = names.empty()          ? absl::StrCat("parameter_", index)
                               : index < names.size() ? names[index]
                                                      : "";
      places.push_back({name, static_cast<int>(group), static_cast<int>(within)});
      list.tensors.push_back(groups[group][within]);
    }
  }
  if (list.tensors.empty()) {
    return absl::InvalidArgumentError("there is no parameter to optimize: the list is empty");
  }
  if (!names.empty() && names.size() != list.tensors.size()) {
    return absl::InvalidArgumentError(absl::StrCat("parameter_names has ", names.size(),
                                                   " names for ", list.tensors.size(),
                                                   " parameters: give one each, or none at all"));
  }
  std::map<const void*, size_t> seen;
  std::vector<GroupSpec> specs(groups.size());
  for (size_t i = 0; i < list.tensors.size(); ++i) {
    const at::Tensor& tensor = list.tensors[i];
    if (absl::Status status = CheckTensor(tensor, places[i]); !status.ok()) return status;
    const auto [earlier, first_time] = seen.emplace(tensor.unsafeGetTensorImpl(), i);
    if (!first_time) {
      return absl::InvalidArgumentError(absl::StrCat(places[earlier->second].Text(),
                                                     " is given again as ", places[i].Text(),
                                                     ": a parameter stands once in one group"));
    }
    ParameterSpec spec;
    spec.name = places[i].name;
    spec.dtype = *DTypeOf(tensor.scalar_type());
    spec.shape.assign(tensor.sizes().begin(), tensor.sizes().end());
    specs[places[i].group].parameters.push_back(std::move(spec));
  }
  if (absl::Status status = CheckDistinctMemory(list.tensors, places); !status.ok()) return status;
  list.space = ParameterSpace(std::move(specs));
  if (absl::Status status = list.space.Validate(); !status.ok()) return status;
  return list;
}

absl::Status CheckGradient(const at::Tensor& parameter, const at::Tensor& gradient,
                           const std::string& name) {
  const auto error = [&name](const auto&... what) {
    return absl::InvalidArgumentError(
        absl::StrCat("the gradient of parameter \"", name, "\" ", what...));
  };
  if (gradient.layout() != at::kStrided) {
    return error("is ", c10::str(gradient.layout()),
                 "; only dense gradients are supported so far (an Embedding with sparse=True gives "
                 "sparse ones)");
  }
  if (!gradient.device().is_cpu()) {
    return error("is on ", gradient.device().str(), "; the parameter is on the CPU");
  }
  if (gradient.scalar_type() != parameter.scalar_type()) {
    return error("is ", c10::toString(gradient.scalar_type()), "; the parameter is ",
                 c10::toString(parameter.scalar_type()));
  }
  if (gradient.sizes() != parameter.sizes()) {
    return error("has the shape ", ShapeText(gradient), "; the parameter has ",
                 ShapeText(parameter));
  }
  return absl::OkStatus();
}

}  // namespace optshard
