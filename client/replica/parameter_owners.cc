#include "client/replica/parameter_owners.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace optshard {

using torch::optim::OptimizerParamGroup;

absl::StatusOr<ParameterOwners> ParameterOwners::Make(const ParameterList& list, int world_size,
                                                      PartitionPolicy policy) {
  const absl::StatusOr<Partition> partition = MakePartition(list.space, world_size, policy);
  if (!partition.ok()) return partition.status();
  return ParameterOwners(list, *partition);
}

ParameterOwners::ParameterOwners(const ParameterList& list, const Partition& partition)
    : space_(list.space),
      owners_(list.tensors.size()),
      world_size_(static_cast<int>(partition.slices.size())) {
  for (size_t i = 0; i < list.tensors.size(); ++i) {
    index_.emplace(list.tensors[i].unsafeGetTensorImpl(), static_cast<int>(i));
  }
  for (Rank rank = 0; rank < world_size_; ++rank) {
    for (const Slice& slice : partition.slices[rank]) {
      owners_[slice.parameter].push_back({rank, slice.offset_elements, slice.elements});
    }
  }
}

absl::StatusOr<int> ParameterOwners::IndexOf(const at::Tensor& parameter) const {
  const auto known = index_.find(parameter.unsafeGetTensorImpl());
  if (known != index_.end()) return known->second;
  if (!parameter.defined()) {
    return absl::InvalidArgumentError("an undefined tensor is no parameter of this optimizer");
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "the tensor ", c10::toString(parameter.scalar_type()), " [",
      absl::StrJoin(parameter.sizes(), ", "), "] is none of the ", owners_.size(),
      " parameters of this optimizer: give one of param_groups() itself, not a view or a detached "
      "copy of it"));
}

absl::StatusOr<std::vector<OwnedRange>> ParameterOwners::OwnersAt(int position) const {
  if (position >= 0 && position < space_.parameter_count()) {
    return owners_[space_.index_at(position)];
  }
  return absl::InvalidArgumentError(
      absl::StrCat("there is no parameter ", position, ": this optimizer has ", owners_.size(),
                   ", which are counted from 0 over its groups in order"));
}

absl::optional<OwnedPart> ParameterOwners::PartOf(int index, Rank rank) const {
  for (const OwnedRange& range : owners_[index]) {
    if (range.rank != rank) continue;
    const ParameterSpec& spec = space_.parameter(index);
    OwnedPart part{index, spec.name, range.offset_elements, spec.shape};
    if (range.elements != spec.elements()) part.shape = {range.elements};
    return part;
  }
  return absl::nullopt;
}

std::vector<std::vector<OptimizerParamGroup>> ParameterOwners::Divide(
    const std::vector<OptimizerParamGroup>& groups) const {
  std::vector<std::vector<OptimizerParamGroup>> divided(world_size_);
  int position = 0;
  for (const OptimizerParamGroup& group : groups) {
    std::vector<std::vector<at::Tensor>> owned(world_size_);
    for (const at::Tensor& tensor : group.params()) {
      for (const OwnedRange& range : owners_[space_.index_at(position)]) {
        // The ranges of a rank follow each other.
        std::vector<at::Tensor>& tensors = owned[range.rank];
        if (tensors.empty() || !tensors.back().is_same(tensor)) tensors.push_back(tensor);
      }
      ++position;
    }
    for (Rank rank = 0; rank < world_size_; ++rank) {
      divided[rank].emplace_back(std::move(owned[rank]), group.options().clone());
    }
  }
  return divided;
}

}  // namespace optshard
